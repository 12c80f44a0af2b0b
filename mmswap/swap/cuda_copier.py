"""Copies from host to card on a side stream, ordered by events both ways. Knows streams and bytes, no plan.

The side stream waits until the lent bytes are done with; the computation waits, unit by unit, for the copies.

`record_stream` is left out on purpose: slabs live as long as the pool, and a recorded one would come back to it late.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mmswap.card.backend import Backend
from mmswap.swap.pinning import PinnedHost
from mmswap.swap.unit import Unit
from mmswap.units import MIB

RING = 16 * MIB  # bytes of each pinned buffer: a power of two, which is what torch would round it up to


class StreamCopier:
    """One asynchronous copy per unit, straight from its mirror.

    Args:
        host: where the mirrors lie; once some are not page-locked, a copy holds the host up.
    """

    def __init__(self, backend: Backend, index: int, host: PinnedHost | None) -> None:
        self._host = host
        self._backend = backend
        self._index = index
        self._side = backend.side_stream(index)
        self._first: Any = None
        self._last: Any = None
        self._arrived: dict[Unit, Any] = {}
        self._waits: list[tuple[Any, Any]] = []

    @property
    def busy(self) -> bool:
        return self._host is None or not self._host.complete

    def begin(self) -> None:
        backend = self._backend
        self._arrived.clear()
        self._waits.clear()
        done = backend.record(backend.current_stream(self._index))
        backend.wait(self._side, done)
        self._first = self._last = backend.record(self._side)

    def copy(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        with self._backend.on_stream(self._side):
            self._transfer(slab, mirror)
        self._last = self._arrived[unit] = self._backend.record(self._side)

    def copy_plainly(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        self._backend.synchronize(self._index)
        slab.copy_(mirror)
        self._backend.synchronize(self._index)

    def wait(self, unit: Unit) -> None:
        arrived = self._arrived.get(unit)
        if arrived is None:  # it came plainly
            return
        stream = self._backend.current_stream(self._index)
        before = self._backend.record(stream)
        self._backend.wait(stream, arrived)
        self._waits.append((before, self._backend.record(stream)))

    def finish(self) -> float | None:
        if self._last is None:
            return None
        self._backend.synchronize_event(self._last)
        return self._backend.elapsed(self._first, self._last)

    def waited(self) -> float:
        total = 0.0
        for before, after in self._waits:
            self._backend.synchronize_event(after)
            total += self._backend.elapsed(before, after)
        return total

    def _transfer(self, slab: Tensor, mirror: Tensor) -> None:
        slab.copy_(mirror, non_blocking=True)


class RingCopier(StreamCopier):
    """For WDDM, which charges pinned memory to the card: mirrors stay pageable and go through two small buffers."""

    def __init__(self, backend: Backend, index: int, ring: int = RING) -> None:
        super().__init__(backend, index, None)
        self._buffers = [backend.pinned(ring) for _ in range(2)]  # now, never while a window is open
        self._taken: list[Any] = [None, None]

    def _transfer(self, slab: Tensor, mirror: Tensor) -> None:
        step = self._buffers[0].numel()
        for turn, begin in enumerate(range(0, slab.numel(), step)):
            which = turn % len(self._buffers)
            if self._taken[which] is not None:
                self._backend.synchronize_event(self._taken[which])
            length = min(step, slab.numel() - begin)
            buffer = self._buffers[which].narrow(0, 0, length)
            buffer.copy_(mirror.narrow(0, begin, length))
            slab.narrow(0, begin, length).copy_(buffer, non_blocking=True)
            self._taken[which] = self._backend.record(self._side)
