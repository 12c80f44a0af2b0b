"""The HIP runtime that torch has already loaded, and never a second one: two of them would share no stream.

    found = loaded()      # Runtime(library=<CDLL>, path=".../libamdhip64.so.7", version="7.2"), or a sentence why not

Knows no kernel. Nothing here chooses a device: indices are torch's, so HIP_VISIBLE_DEVICES holds as it does for torch.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HIP, RTC = "amdhip64", "hiprtc"
_MAPS = Path("/proc/self/maps")
_LONGEST = 32768  # characters of a path on Windows


@dataclass(frozen=True, slots=True, eq=False)
class Runtime:
    """A loaded HIP runtime. `version`: major and minor, as it calls itself."""

    library: Any
    path: str
    version: str


def loaded(maps: Path = _MAPS) -> Runtime | str:
    """The one that is loaded in this process, or why there is none. Loads nothing."""
    paths = modules(HIP, maps)
    if not paths:
        return "no HIP runtime is loaded: this torch is not built for ROCm"
    library = opened(paths[0])
    if library is None:
        return f"{paths[0]} is loaded and cannot be asked for"
    number = ctypes.c_int()
    try:
        status = library.hipRuntimeGetVersion(ctypes.byref(number))
    except AttributeError:
        return f"{paths[0]} is no HIP runtime"
    if status:
        return f"the HIP runtime does not tell its version ({error_text(library, status)})"
    return Runtime(library, paths[0], version_text(number.value))


def version_text(number: int) -> str:
    """`70226015 -> '7.2'`: HIP counts ten millions for a major version, a hundred thousand for a minor one."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}"


def error_text(library: Any, status: int) -> str:
    """What the runtime calls a status."""
    try:
        ask = library.hipGetErrorString
        ask.restype, ask.argtypes = ctypes.c_char_p, [ctypes.c_int]
        text = ask(status)
    except (AttributeError, OSError):
        text = None
    return f"{text.decode('utf-8', 'replace')}, code {status}" if text else f"code {status}"


def modules(stem: str, maps: Path = _MAPS) -> list[str]:
    """Paths of the libraries of that name that this process has loaded, in the order of their addresses."""
    if sys.platform == "win32":
        return _windows_modules(stem)
    try:
        lines = maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    name = re.compile(rf"lib{stem}\.so[.\d]*")
    paths = (line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6)
    return list(dict.fromkeys(path for path in paths if name.fullmatch(path.rpartition("/")[2])))


def named_in(binary: bytes) -> list[str]:
    """The HIP runtimes that a library names: what its loading would load if it is not there yet."""
    found = re.findall(rb"(?:lib)?amdhip64(?:\.so[.\d]*|[_\d]*\.dll)", binary, re.IGNORECASE)
    return sorted({name.decode("ascii") for name in found})


def opened(path: str) -> ctypes.CDLL | None:
    """A loaded library by its path, its symbols open to libraries that come later; None if it is not loaded."""
    try:
        if sys.platform == "win32":
            return ctypes.CDLL(path, handle=_windows_handle(path) or _none(path))
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError:
        return None


def _none(path: str) -> int:
    raise OSError(f"{path} is not loaded")


if sys.platform == "win32":

    def _windows_handle(path: str) -> int | None:
        ask = ctypes.WinDLL("kernel32").GetModuleHandleW
        ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_wchar_p]
        handle: int | None = ask(path)
        return handle

    def _windows_modules(stem: str) -> list[str]:
        """Of `amdhip64.dll`, `amdhip64_7.dll`, `hiprtc0702.dll` and the like."""
        kernel = ctypes.WinDLL("kernel32")
        process, listing, name = kernel.GetCurrentProcess, kernel.K32EnumProcessModules, kernel.GetModuleFileNameW
        process.restype = ctypes.c_void_p
        listing.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p]
        name.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32]
        handles, needed = (ctypes.c_void_p * 4096)(), ctypes.c_uint32()
        if not listing(process(), handles, ctypes.sizeof(handles), ctypes.byref(needed)):
            return []
        found, text = [], ctypes.create_unicode_buffer(_LONGEST)
        for handle in handles[: min(len(handles), needed.value // ctypes.sizeof(ctypes.c_void_p))]:
            name(handle, text, _LONGEST)
            if re.fullmatch(rf"{stem}[_\d]*\.dll", text.value.replace("/", "\\").rpartition("\\")[2], re.IGNORECASE):
                found.append(text.value)
        return found

else:

    def _windows_handle(path: str) -> int | None:
        raise AssertionError("only on Windows")

    def _windows_modules(stem: str) -> list[str]:
        raise AssertionError("only on Windows")
