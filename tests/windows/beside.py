"""The libraries beside DXGI of the pretended Windows of vtables.py, in Python: events, KMT, counters, runtimes."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from ctypes import c_int32, c_size_t, c_uint32, c_void_p, memmove, string_at
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windows.vtables import Vtables

INVALID_PARAMETER = 0xC000000D - (1 << 32)
PDH_MORE_DATA, PDH_FAILED, PDH_NO_COUNTER = 0x800007D2, 0xC0000BBB, 0xC0000BB9
ITEM = struct.Struct("<QI4xQ")  # PDH_FMT_COUNTERVALUE_ITEM_W


class Kernel:
    """Events out of one condition. On Windows the real ones would do as well."""

    def __init__(self, world: Vtables) -> None:
        self.world, self.events, self.last = world, {}, 0
        self.condition = threading.Condition()

    def CreateEventW(self, security: int, manual: int, initial: int, name: int) -> int | None:
        if "CreateEventW" in self.world.failing:
            return None
        self.last += 1
        self.events[self.last] = [manual, False]
        return self.last

    def SetEvent(self, handle: int) -> int:
        with self.condition:
            self.events[handle][1] = True
            self.condition.notify_all()
        return 1

    def CloseHandle(self, handle: int) -> int:
        del self.events[handle]
        return 1

    def WaitForMultipleObjects(self, count: int, handles: int, every: int, milliseconds: int) -> int:
        if "WaitForMultipleObjects" in self.world.failing or every or milliseconds != 0xFFFFFFFF:
            return 0xFFFFFFFF
        watched = [self.events[handle] for handle in (c_size_t * count).from_address(handles)]
        with self.condition:
            self.condition.wait_for(lambda: any(is_set for _, is_set in watched))
            place = next(place for place, (_, is_set) in enumerate(watched) if is_set)
            if not watched[place][0]:
                watched[place][1] = False
        return place


class Gdi:
    def __init__(self, world: Vtables) -> None:
        self.world = world

    def D3DKMTOpenAdapterFromLuid(self, opening: int) -> int:
        (luid,) = struct.unpack("<Q", string_at(opening, 8))
        index = next((i for i, card in enumerate(self.world.cards) if card.luid == luid), None)
        if index is None or "D3DKMTOpenAdapterFromLuid" in self.world.failing:
            return INVALID_PARAMETER
        self.world.kernel_handles += 1
        c_uint32.from_address(opening + 8).value = index + 1
        return 0

    def D3DKMTCloseAdapter(self, handle: int) -> int:
        self.world.kernel_handles -= 1
        return 0

    def D3DKMTQueryAdapterInfo(self, query: int) -> int:
        handle, kind, data, size = struct.unpack("<IIQI", string_at(query, 20))
        if "D3DKMTQueryAdapterInfo" in self.world.failing or kind != 6 or size != 12:
            return INVALID_PARAMETER
        memmove(data, struct.pack("<3I", *self.world.cards[handle - 1].pci), 12)
        return 0


class Pdh:
    def __init__(self, world: Vtables) -> None:
        self.world, self.counters, self.kept = world, [], None

    def PdhOpenQueryW(self, source: int, user: int, out: int) -> int:
        if "PdhOpenQueryW" in self.world.failing:
            return PDH_FAILED
        self.world.queries += 1
        c_void_p.from_address(out).value = 7
        return 0

    def PdhCloseQuery(self, query: int) -> int:
        self.world.queries -= 1
        return 0

    def PdhCollectQueryData(self, query: int) -> int:
        return PDH_FAILED if "PdhCollectQueryData" in self.world.failing else 0

    def PdhAddEnglishCounterW(self, query: int, path: int, user: int, out: int) -> int:
        text = ""
        while (unit := string_at(path + 2 * len(text), 2)) != b"\0\0":
            text += unit.decode("utf-16-le")
        of, _, usage = text.removeprefix("\\").partition("(*)\\")
        known = of in ("GPU Adapter Memory", "GPU Process Memory") and usage in ("Dedicated Usage", "Shared Usage")
        if "PdhAddEnglishCounterW" in self.world.failing or not known:
            return PDH_NO_COUNTER
        self.counters.append((of == "GPU Adapter Memory", usage == "Shared Usage"))
        c_void_p.from_address(out).value = len(self.counters)
        return 0

    def PdhGetFormattedCounterArrayW(self, counter: int, form: int, size: int, count: int, items: int | None) -> int:
        if "PdhGetFormattedCounterArrayW" in self.world.failing or form != 0x400:
            return PDH_FAILED
        adapter, shared = self.counters[counter - 1]
        rows = [row for row in self.world.rows if (row[0] is None) == adapter]
        need = len(rows) * (ITEM.size + 128)
        if items and self.world.grows:
            self.world.grows -= 1
            c_uint32.from_address(size).value = need + 64
            return PDH_MORE_DATA
        if rows and (not items or c_uint32.from_address(size).value < need):
            c_uint32.from_address(size).value = need
            return PDH_MORE_DATA
        c_uint32.from_address(count).value = len(rows)
        for place, (pid, luid, phys, dedicated, part, status) in enumerate(rows):
            name = "" if pid is None else f"pid_{pid}_"
            name += f"luid_0x{luid >> 32:08X}_0x{luid & 0xFFFFFFFF:08X}_phys_{phys}"
            text = items + len(rows) * ITEM.size + 128 * place
            memmove(text, name.encode("utf-16-le") + b"\0\0", 2 * len(name) + 2)
            item = ITEM.pack(text, status, part if shared else dedicated)
            memmove(items + ITEM.size * place, item, ITEM.size)
        return 0


class Runtime:
    """HIP and CUDA. CUDA's handles are not its ordinals."""

    def __init__(self, world: Vtables) -> None:
        self.world = world

    def ask(self, call: str, device: int, answer: Callable[[int, str, int, str], int]) -> int:
        if call in self.world.failing or not 0 <= device < len(self.world.devices):
            return 101
        return answer(*self.world.devices[device])

    def hipDeviceGetLuid(self, luid: int, nodes: int, device: int) -> int:
        return self.ask("hipDeviceGetLuid", device, lambda *about: _put_luid(luid, nodes, about))

    def hipGetDevicePropertiesR0600(self, out: int, device: int) -> int:
        def answer(luid: int, name: str, nodes: int, pci: str) -> int:
            text = name.encode().ljust(256, b"\0")
            memmove(out, text + b"\xaa" * 16 + struct.pack("<QI", luid, nodes) + b"\xaa" * 1188, 1472)
            return 0

        return self.ask("hipGetDevicePropertiesR0600", device, answer)

    def hipDeviceGetPCIBusId(self, text: int, size: int, device: int) -> int:
        return self.ask("hipDeviceGetPCIBusId", device, lambda *about: _put_pci(text, size, about))

    def cuDeviceGet(self, out: int, ordinal: int) -> int:
        c_int32.from_address(out).value = 1000 + ordinal
        return self.ask("cuDeviceGet", ordinal, lambda *about: 0)

    def cuDeviceGetLuid(self, luid: int, nodes: int, handle: int) -> int:
        return self.ask("cuDeviceGetLuid", handle - 1000, lambda *about: _put_luid(luid, nodes, about))

    def cuDeviceGetPCIBusId(self, text: int, size: int, handle: int) -> int:
        return self.ask("cuDeviceGetPCIBusId", handle - 1000, lambda *about: _put_pci(text, size, about))


def _put_luid(luid: int, nodes: int, about: tuple[Any, ...]) -> int:
    memmove(luid, struct.pack("<Q", about[0]), 8)
    c_uint32.from_address(nodes).value = about[2]
    return 0


def _put_pci(text: int, size: int, about: tuple[Any, ...]) -> int:
    if not about[3]:
        return 101
    memmove(text, about[3].encode() + b"\0", len(about[3]) + 1)
    return 0
