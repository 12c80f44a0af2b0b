"""What NVIDIA's driver library says of a card's memory, all processes counted. By ctypes; knows no torch.

    found = find_nvml(uuid="GPU-...", pci="0000:03:00.0", total=...);  found.vram().bytes  # or a str: why not

Only what the driver itself installs is used (`libnvidia-ml.so.1`, `nvml.dll`); without it there is no answer, and no
call here can fail otherwise than by saying so.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_char_p, c_int, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

from mmswap.card.budget import Source, adapter_leaves, differs, unknown
from mmswap.errors import told
from mmswap.units import format_bytes

NAME = "NVML"


class _Memory(ctypes.Structure):
    """nvmlMemory_t of nvml.h."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


@dataclass(frozen=True, slots=True)
class NvmlCard:
    """A device of NVML: the library, its handle, and how it was found."""

    library: Any
    handle: c_void_p
    how: str

    def vram(self) -> Source:
        """What is left of the card; read now, never raises."""
        try:
            found = _memory(self.library, self.handle)
        except Exception as error:
            return unknown(NAME, f"asking for it failed: {told(error)}", doubtful=True)
        if isinstance(found, str):
            return unknown(NAME, found, doubtful=True)
        total, free = found
        source = adapter_leaves(NAME, total=total, used=total - free)
        return source if source.bytes is None else Source(NAME, source.bytes, f"{source.reason} ({self.how})")


def find_nvml(*, uuid: str | None, pci: str | None, total: int, library: Any = None) -> NvmlCard | str:
    """The device, or why there is none. Never raises.

    Args:
        uuid: as torch gives it, with or without `GPU-` or `MIG-` before it.
        pci: its address, used where the UUID is not known to NVML.
        total: its bytes: a whole card must not answer for a part of it.
        library: a stand-in with NVML's functions.
    """
    if not uuid and not pci:
        return "this torch tells neither the UUID nor the PCI address of the card"
    try:
        library = library if library is not None else _open()
        return library if isinstance(library, str) else _find(library, uuid, pci, total)
    except Exception as error:
        return f"asking for it failed: {told(error)}"


def _open() -> Any:
    """The driver's library, made ready; a sentence if it is not there."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return f"{name} is not installed"
    for function, arguments in (
        ("nvmlInit_v2", []),
        ("nvmlDeviceGetHandleByUUID", [c_char_p, c_void_p]),
        ("nvmlDeviceGetHandleByPciBusId_v2", [c_char_p, c_void_p]),
        ("nvmlDeviceGetMemoryInfo", [c_void_p, c_void_p]),
    ):
        found = getattr(library, function)
        found.argtypes, found.restype = arguments, c_int
    return library


def _find(library: Any, uuid: str | None, pci: str | None, total: int) -> NvmlCard | str:
    status = library.nvmlInit_v2()
    if status:
        return f"nvmlInit_v2 failed with status {status}"
    plain = (uuid or "").removeprefix("GPU-").removeprefix("MIG-")
    names = [(f"{kind}-{plain}", "by its UUID", library.nvmlDeviceGetHandleByUUID) for kind in ("GPU", "MIG") if plain]
    if pci:
        names.append((pci, "by its PCI address", library.nvmlDeviceGetHandleByPciBusId_v2))
    causes, strange = [], "NVML does not know this card"
    for name, how, ask in names:
        handle = c_void_p()
        status = ask(name.encode(), byref(handle))
        if status:
            strange = f"NVML does not know this card (status {status})"
            continue
        memory = _memory(library, handle)
        if isinstance(memory, str):
            causes.append(memory)
        elif differs(memory[0], total):
            causes.append(f"NVML's card of that name has {format_bytes(memory[0])}, this one {format_bytes(total)}")
        else:
            return NvmlCard(library, handle, how)
    return (causes or [strange])[0]


def _memory(library: Any, handle: c_void_p) -> tuple[int, int] | str:
    """Total and free bytes."""
    memory = _Memory()
    status = library.nvmlDeviceGetMemoryInfo(handle, byref(memory))
    if status:
        return f"nvmlDeviceGetMemoryInfo failed with status {status}"
    total, free = int(memory.total), int(memory.free)
    return (total, free) if total > 0 and free <= total else f"NVML reports {free} bytes free of {total}"
