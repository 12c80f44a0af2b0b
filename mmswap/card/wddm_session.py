"""Everything that is open at once for one device: factory, adapters, budget watch, counters. One owner, one thread.

Every method may raise `CallFailed`; card/wddm.py catches, and opens a new session when this one is no longer current.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from mmswap.card.dxgi import LOCAL, NON_LOCAL, Adapter, Segment, open_factory
from mmswap.card.luid import find_adapters
from mmswap.card.pdh import ADAPTER_DEDICATED, PROCESS_SHARED, GpuCounters, Row
from mmswap.card.wddm_device import Device
from mmswap.card.wddm_libraries import CallFailed, Libraries
from mmswap.card.wddm_watch import BudgetWatch
from mmswap.units import format_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """This process's budget and usage on one adapter: its own memory, and the system's where Windows says it."""

    local: Segment
    shared: Segment | None


class Session:
    """Raises `CallFailed` where there is no factory or no adapter; watch and counters are optional."""

    def __init__(self, libraries: Libraries, device: Device) -> None:
        self._pid = os.getpid()
        self._watch: BudgetWatch | None = None
        self._counters: GpuCounters | None = None
        self._pdh = libraries.pdh
        self._factory = open_factory(libraries.dxgi)
        try:
            self._found = find_adapters(self._factory, libraries, device)
        except Exception:
            self._factory.close()
            raise
        self.route = self._found.route
        self._luids = {about.luid for about in self._found.described}
        try:
            self._watch = BudgetWatch(libraries.kernel, self._found.adapters)
        except Exception as error:
            log.debug("no budget events, so budgets are only polled: %s", error)

    def is_current(self) -> bool:
        return self._factory.is_current()

    def forget_change(self) -> None:
        """The figures are about to be read: a budget event that came before is answered by them."""
        if self._watch is not None:
            self._watch.changed.clear()

    def has_change(self) -> bool:
        """Whether a budget event came since `forget_change`."""
        return self._watch is not None and self._watch.changed.is_set()

    def memory(self, worst: Callable[[Memory], int]) -> Memory:
        """Budgets and usage; of several adapters that may be the device, the one for which `worst` is least."""
        found = min((_memory(adapter, self._found.node) for adapter in self._found.adapters), key=worst)
        size = max(about.dedicated for about in self._found.described)
        if found.local.budget == 0:
            raise CallFailed("Windows gives a budget of 0 bytes")
        if found.local.usage > 2 * size:
            used = format_bytes(found.local.usage)
            raise CallFailed(f"Windows says that this process uses {used} of a card of {format_bytes(size)}")
        return found

    def adapter_used(self) -> int:
        """Bytes of the card's own memory that all processes use; of several adapters, the fullest one's."""
        used: dict[int, int] = {}
        for row in self._rows(ADAPTER_DEDICATED):
            used[row.luid] = used.get(row.luid, 0) + row.bytes
        if not used:
            raise CallFailed("Windows' counters have no row for this adapter")
        return max(used.values())

    def shared_by_counter(self) -> int:
        """Bytes of system memory that this process uses for the card, by Windows' counters."""
        own = [row.bytes for row in self._rows(PROCESS_SHARED) if row.pid == self._pid]
        if not own:
            raise CallFailed("Windows' counters have no row for this process on this adapter")
        return sum(own)

    def shared_by_dxgi(self) -> int:
        """The same by DXGI, to which everything of this process counts that is not in the card's own memory."""
        return sum(adapter.memory(NON_LOCAL, self._found.node).usage for adapter in self._found.adapters)

    def _rows(self, path: str) -> list[Row]:
        if self._counters is None:
            self._counters = GpuCounters(self._pdh)
        return [row for row in self._counters.read(path) if row.luid in self._luids and row.phys == self._found.node]

    def close(self) -> None:
        """Gives everything back, in the reverse order."""
        if self._counters is not None:
            self._counters.close()
            self._counters = None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._found.close()
        self._factory.close()


def _memory(adapter: Adapter, node: int) -> Memory:
    local = adapter.memory(LOCAL, node)
    try:
        return Memory(local, adapter.memory(NON_LOCAL, node))
    except CallFailed as error:
        log.debug("the system's memory has no budget: %s", error)
        return Memory(local, None)
