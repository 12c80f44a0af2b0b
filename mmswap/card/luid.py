"""Which adapter of DXGI is device i: by its LUID, by its place on the PCI bus, or by vendor, size and name.

The first way that is sure decides. A device that is found and that no budget can be applied to (an adapter of several
linked cards, one whose memory is not the device's) ends the search: the next way could only find another card.

    found = find_adapters(factory, libraries, device);  found.adapters, found.route   # or CallFailed, with every reason
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from mmswap.card.dxgi import REMOTE, SOFTWARE, Adapter, Description, Factory, Luid, close_all
from mmswap.card.wddm_device import Device, Identity, Pci, bus_place, identities
from mmswap.card.wddm_libraries import FAILURES, STATUS, CallFailed, Libraries, bind, expect
from mmswap.units import format_bytes

ADAPTER_ADDRESS = 6  # KMTQAITYPE_ADAPTERADDRESS
TOLERANCE = 16  # the driver and DXGI agree on a card's size within one part of it

Pair = tuple[Adapter, Description]


@dataclass(frozen=True, slots=True)
class Found:
    """The adapters that may be the device (more than one: twins, use the worst), its node on them, and how found."""

    adapters: tuple[Adapter, ...]
    described: tuple[Description, ...]
    node: int
    route: str

    def close(self) -> None:
        close_all(self.adapters)


class NoCorrection(CallFailed):
    """The device was found, and its budget says nothing about the bytes that it can take."""


class OpenAdapter(ctypes.Structure):
    """D3DKMT_OPENADAPTERFROMLUID."""

    _fields_ = (("luid", Luid), ("handle", c_uint32))


class AdapterQuery(ctypes.Structure):
    """D3DKMT_QUERYADAPTERINFO."""

    _fields_ = (("handle", c_uint32), ("kind", c_uint32), ("data", c_void_p), ("size", c_uint32))


def find_adapters(factory: Factory, libraries: Libraries, device: Device) -> Found:
    """The adapter of `device`, or all that cannot be told apart; the caller closes them.

    Raises:
        CallFailed: no adapter is the device's, or no budget can be applied; the message has the reason of every way.
    """
    if device.integrated:
        raise NoCorrection("the device is part of the processor and its memory is the system's")
    refusals = []
    for identity in identities(libraries.runtime, device):
        if isinstance(identity, str):
            refusals.append(identity)
            continue
        try:
            return _by_luid(factory, device, identity)
        except NoCorrection:
            raise
        except FAILURES as error:
            refusals.append(f"{error} (LUID by {identity.source})")
    return _by_listing(factory, libraries, device, refusals)


def _by_luid(factory: Factory, device: Device, identity: Identity) -> Found:
    if bin(identity.nodes).count("1") > 1:
        raise NoCorrection(f"{identity.source} says that the device is several linked cards")
    adapter = factory.adapter(identity.luid)
    try:
        about = adapter.describe()
        if about.vendor != device.vendor:
            raise CallFailed(f"the adapter of that LUID is '{about.name}' of another maker")
        _check_size(about, device)
    except Exception:
        adapter.close()
        raise
    node = max(0, identity.nodes.bit_length() - 1)
    return Found((adapter,), (about,), node, f"'{about.name}', found by the LUID of {identity.source}")


def _by_listing(factory: Factory, libraries: Libraries, device: Device, refusals: list[str]) -> Found:
    candidates = _hardware(factory, device.vendor)
    keep: list[Pair] = []
    try:
        try:
            keep = [_by_place(candidates, libraries, device)]
            route = f"'{keep[0][1].name}', found by its place on the PCI bus"
        except NoCorrection:
            raise
        except FAILURES as error:
            refusals.append(str(error))
            keep, route = _by_size(candidates, device, refusals)
    finally:
        _close_others([adapter for adapter, _ in candidates], keep)
    adapters, described = zip(*keep)
    return Found(adapters, described, 0, route)


def _hardware(factory: Factory, vendor: int) -> list[Pair]:
    """The maker's real adapters, each once: DXGI may list one twice."""
    found: list[Pair] = []
    listed = factory.adapters()
    try:
        for adapter in listed:
            about = adapter.describe()
            if about.vendor != vendor or about.flags & (REMOTE | SOFTWARE):
                continue
            if all(about.luid != other.luid for _, other in found):
                found.append((adapter, about))
    except Exception:
        close_all(listed)
        raise
    _close_others(listed, found)
    return found


def _close_others(adapters: list[Adapter], keep: list[Pair]) -> None:
    close_all([adapter for adapter in adapters if all(adapter is not kept for kept, _ in keep)])


def _by_place(candidates: list[Pair], libraries: Libraries, device: Device) -> Pair:
    place = bus_place(libraries.runtime, device)
    hits, reasons = [], []
    for one in candidates:
        try:
            if place_of(libraries.gdi, one[1].luid) == place:
                hits.append(one)
        except FAILURES as error:
            reasons.append(f"{error} for '{one[1].name}'")
    if len(hits) != 1:
        where = f"{place[0]:02x}:{place[1]:02x}.{place[2]:x}"
        reasons.append(f"{len(hits)} adapters of that maker are at {where} on the PCI bus")
        raise CallFailed("; ".join(reasons))
    _check_size(hits[0][1], device)
    return hits[0]


def place_of(gdi: Any, luid: int) -> Pci:
    """Bus, device and function of an adapter, by the kernel's own interface (D3DKMT)."""
    opening = OpenAdapter(Luid.of(luid), 0)
    expect("D3DKMTOpenAdapterFromLuid", bind(gdi, "D3DKMTOpenAdapterFromLuid", STATUS, c_void_p)(byref(opening)))
    handle = c_uint32(opening.handle)
    try:
        address = (c_uint32 * 3)()
        query = AdapterQuery(handle, ADAPTER_ADDRESS, ctypes.addressof(address), ctypes.sizeof(address))
        expect("D3DKMTQueryAdapterInfo", bind(gdi, "D3DKMTQueryAdapterInfo", STATUS, c_void_p)(byref(query)))
    finally:
        bind(gdi, "D3DKMTCloseAdapter", STATUS, c_void_p)(byref(handle))
    bus, slot, function = address
    return bus, slot, function


def _by_size(candidates: list[Pair], device: Device, refusals: list[str]) -> tuple[list[Pair], str]:
    fitting = [one for one in candidates if _fits(one[1], device)]
    named = [one for one in fitting if one[1].name == device.name]
    keep = named or fitting
    if not keep:
        refusals.append(f"no adapter of that maker has about {format_bytes(device.total)}")
        raise CallFailed("; ".join(refusals))
    how = "maker, size and name" if named else "maker and size"
    if len(keep) > 1:
        return keep, f"one of {len(keep)} adapters of the same {how}, so the worst of them counts"
    return keep, f"'{keep[0][1].name}', found by {how}"


def _fits(about: Description, device: Device) -> bool:
    return abs(about.dedicated - device.total) * TOLERANCE <= device.total


def _check_size(about: Description, device: Device) -> None:
    if not _fits(about, device):
        raise NoCorrection(
            f"adapter '{about.name}' has {format_bytes(about.dedicated)} of its own and the driver speaks of "
            f"{format_bytes(device.total)}, so its budget is about other memory"
        )
