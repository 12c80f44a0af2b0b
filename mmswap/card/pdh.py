"""Windows' performance counters of GPU memory, by ctypes: what every process holds on an adapter.

    counters = GpuCounters(libraries.pdh);  counters.read(ADAPTER_DEDICATED);  counters.close()

The English names work in every language of Windows. Instances are found by a wildcard, afresh at every reading.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from ctypes import byref, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from mmswap.card.wddm_libraries import bind, expect

ADAPTER_DEDICATED = r"\GPU Adapter Memory(*)\Dedicated Usage"
PROCESS_SHARED = r"\GPU Process Memory(*)\Shared Usage"

FORMAT_LARGE = 0x400  # PDH_FMT_LARGE
MORE_DATA = 0x800007D2  # PDH_MORE_DATA
VALID = (0, 1)  # PDH_CSTATUS_VALID_DATA, PDH_CSTATUS_NEW_DATA
_INSTANCE = re.compile(r"(?:pid_(\d+)_)?luid_0x([0-9a-f]{8})_0x([0-9a-f]{8})_phys_(\d+)", re.IGNORECASE)


class CounterValue(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE, of which only the 64-bit integer is asked for."""

    _fields_ = (("status", c_uint32), ("value", c_int64))


class CounterItem(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W."""

    _fields_ = (("name", c_void_p), ("value", CounterValue))


@dataclass(frozen=True, slots=True)
class Row:
    """One instance of a counter. `pid` is None on a counter of adapters; `phys` is the node of a linked adapter."""

    pid: int | None
    luid: int
    phys: int
    bytes: int


class GpuCounters:
    """One PDH query over the counters above. All methods raise `CallFailed`."""

    def __init__(self, pdh: Any) -> None:
        self._get = bind(
            pdh, "PdhGetFormattedCounterArrayW", c_uint32, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p
        )
        self._collect = bind(pdh, "PdhCollectQueryData", c_uint32, c_void_p)
        self._close = bind(pdh, "PdhCloseQuery", c_uint32, c_void_p)
        self._add = bind(pdh, "PdhAddEnglishCounterW", c_uint32, c_void_p, c_void_p, c_void_p, c_void_p)
        opening = bind(pdh, "PdhOpenQueryW", c_uint32, c_void_p, c_void_p, c_void_p)
        self._counters: dict[str, int] = {}
        self._query: int | None = None
        query = c_void_p()
        expect("PdhOpenQueryW", opening(None, None, byref(query)))
        self._query = query.value

    def read(self, path: str) -> list[Row]:
        """What the counter says now of every instance; one whose value is not valid is left out."""
        if path not in self._counters:
            self._counters[path] = self._added(path)
        expect("PdhCollectQueryData", self._collect(self._query))
        return _rows(self._get, self._counters[path])

    def _added(self, path: str) -> int:
        counter = c_void_p()
        wide = ctypes.create_string_buffer(path.encode("utf-16-le") + b"\0\0")
        expect("PdhAddEnglishCounterW", self._add(self._query, wide, None, byref(counter)))
        return counter.value or 0

    def close(self) -> None:
        if self._query is not None:
            self._close(self._query)
            self._query = None


def _rows(get: Callable[..., int], counter: int) -> list[Row]:
    size, count = c_uint32(0), c_uint32(0)
    buffer: Any = None
    for _ in range(8):  # processes may come between asking for the size and asking for the rows
        status = get(counter, FORMAT_LARGE, byref(size), byref(count), buffer)
        if status != MORE_DATA:
            break
        buffer = ctypes.create_string_buffer(size.value)
    expect("PdhGetFormattedCounterArrayW", status)
    if buffer is None:
        return []
    rows = (_row(item) for item in (CounterItem * count.value).from_buffer(buffer))
    return [row for row in rows if row is not None]


def _row(item: CounterItem) -> Row | None:
    found = _INSTANCE.match(_wide(item.name))
    if found is None or item.value.status not in VALID or item.value.value < 0:
        return None
    pid = None if found[1] is None else int(found[1])
    return Row(pid, int(found[2], 16) << 32 | int(found[3], 16), int(found[4]), item.value.value)


def _wide(address: int) -> str:
    """A zero-ended UTF-16 string; ctypes' own reader takes wchar_t, which has four bytes outside Windows."""
    units = bytearray()
    while (unit := ctypes.string_at(address + len(units), 2)) != b"\0\0":
        units += unit
    return units.decode("utf-16-le", "replace")
