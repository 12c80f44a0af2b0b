"""What the HIP or CUDA runtime says of device i that Windows knows too: its LUID and its place on the PCI bus.

Knows no DXGI. Every call is given the ordinal that torch uses (after HIP_VISIBLE_DEVICES): DXGI's order is another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ctypes import byref, c_int, c_uint32, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import Any

from mmswap.card.wddm_libraries import FAILURES, CallFailed, bind, expect

PROPERTIES = 16384  # bytes; hipDeviceProp_tR0600 has about 1500 of them
NAME, LUID, NODE_MASK = slice(0, 256), slice(272, 280), slice(280, 284)  # a uuid lies between name and LUID

VENDORS = {"hip": 0x1002, "cuda": 0x10DE}
_PCI = re.compile(r"(?:[0-9a-f]+:)?([0-9a-f]+):([0-9a-f]+)\.([0-9a-f]+)", re.IGNORECASE)

Pci = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Device:
    """A device as torch sees it. `total` is bytes; `pci` is `bus:device.function`, with or without a domain."""

    kind: str
    ordinal: int
    name: str
    total: int
    pci: str | None = None
    integrated: bool = False

    @property
    def vendor(self) -> int:
        return VENDORS[self.kind]


@dataclass(frozen=True, slots=True)
class Identity:
    """A LUID, the bit mask of the nodes that the device is on a linked adapter (0: not said), and who says so."""

    luid: int
    nodes: int
    source: str


def identities(runtime: Any, device: Device) -> Iterator[Identity | str]:
    """What each way of asking for the LUID gives, best way first: an identity, or why there is none."""
    ways = (_hip_luid, _hip_properties) if device.kind == "hip" else (_cuda_luid,)
    for way in ways:
        try:
            yield way(runtime, device)
        except FAILURES as error:
            yield str(error)


def bus_place(runtime: Any, device: Device) -> Pci:
    """Bus, device and function, by torch or else by the runtime."""
    text = device.pci
    if text is None and device.kind == "hip":
        text = _bus_id(bind(runtime, "hipDeviceGetPCIBusId", c_int, c_void_p, c_int, c_int), device.ordinal)
    elif text is None:
        get = bind(runtime, "cuDeviceGetPCIBusId", c_int, c_void_p, c_int, c_int)
        text = _bus_id(get, _cuda_handle(runtime, device.ordinal))
    found = _PCI.fullmatch(text.strip())
    if not found:
        raise CallFailed(f"'{text}' is no place on a PCI bus")
    bus, slot, function = (int(part, 16) for part in found.groups())
    return bus, slot, function


def _bus_id(get: Any, device: int) -> str:
    text = create_string_buffer(64)
    expect("DeviceGetPCIBusId", get(text, len(text), device))
    return text.value.decode("ascii", "replace")


def _hip_luid(runtime: Any, device: Device) -> Identity:
    """HIP has it since August 2026 (ROCm/rocm-systems#9914)."""
    get = bind(runtime, "hipDeviceGetLuid", c_int, c_void_p, c_void_p, c_int)
    return _ask(get, "hipDeviceGetLuid", device.ordinal)


def _cuda_luid(runtime: Any, device: Device) -> Identity:
    get = bind(runtime, "cuDeviceGetLuid", c_int, c_void_p, c_void_p, c_int)
    return _ask(get, "cuDeviceGetLuid", _cuda_handle(runtime, device.ordinal))


def _cuda_handle(runtime: Any, ordinal: int) -> int:
    handle = c_int()
    expect("cuDeviceGet", bind(runtime, "cuDeviceGet", c_int, c_void_p, c_int)(byref(handle), ordinal))
    return handle.value


def _ask(get: Any, name: str, handle: int) -> Identity:
    luid, nodes = create_string_buffer(8), c_uint32()
    expect(name, get(luid, byref(nodes), handle))
    return _identity(luid.raw, nodes.value, name)


def _hip_properties(runtime: Any, device: Device) -> Identity:
    """The property structure of HIP 6 and 7, in which the name must be torch's.

    The suffix is the layout: the function without it fills an older structure, which has no LUID.
    """
    name = "hipGetDevicePropertiesR0600"
    raw = create_string_buffer(PROPERTIES)
    expect(name, bind(runtime, name, c_int, c_void_p, c_int)(raw, device.ordinal))
    read = raw.raw[NAME].split(b"\0", 1)[0].decode("utf-8", "replace")
    if read != device.name:
        raise CallFailed(f"{name} tells of '{read}', not of '{device.name}'")
    return _identity(raw.raw[LUID], int.from_bytes(raw.raw[NODE_MASK], "little"), name)


def _identity(luid: bytes, nodes: int, source: str) -> Identity:
    if not any(luid):
        raise CallFailed(f"{source} gives a LUID of zeros")
    return Identity(int.from_bytes(luid, "little"), nodes, source)
