"""Slabs on a real card: one segment of a private `torch.cuda.MemPool`, lent by freeing slabs into that pool.

The caching allocator cuts a free segment in address order, so slabs taken one after another lie side by side, and an
evicted prefix of the ladder is one free range. Nothing is remapped and nothing goes back to the driver, so a slab can
be taken again at its old address. Segments that the lent code makes beyond the slabs stay in the pool, for torch frees
a pool's segments only together: they are its scratch, counted by `scratch` and used first by the next window.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmswap.card.backend import Backend
from mmswap.errors import MmswapError
from mmswap.swap.arena import Arena, Usage
from mmswap.units import MIB

ROUND = 512  # bytes: what the caching allocator rounds a request up to
SMALLEST = MIB + ROUND  # smaller requests come from other segments, and no split leaves less than 1 MiB
_ATTEMPTS = 64


class AddressLost(MmswapError):
    """A slab is back with its bytes, but not where it was: captured graphs must be captured anew."""


class CudaArena(Arena):
    """See the module.

    Args:
        backend: `torch.cuda`, or a stand-in.
        index: which device.
        sizes: bytes of each unit, in ladder order.

    Attributes:
        adjacent: whether the allocator put the slabs side by side (its settings can forbid splitting).
    """

    unbinds = True

    def __init__(self, backend: Backend, index: int, sizes: Sequence[int]) -> None:
        self._backend = backend
        self._index = index
        self._sizes = [max(SMALLEST, -(-size // ROUND) * ROUND) for size in sizes]
        self._pool = backend.make_pool(index)
        with torch.inference_mode(False), backend.use_pool(self._pool, index):
            if self._sizes:
                backend.empty(sum(self._sizes), index)  # dies at once, and leaves one free segment behind
            whole = [backend.empty(size, index) for size in self._sizes]
        self.slabs = [slab.narrow(0, 0, size) for slab, size in zip(whole, sizes)]
        self._addresses = [backend.address(slab) for slab in whole]
        ends = [address + size for address, size in zip(self._addresses, self._sizes)]
        self.adjacent = ends[:-1] == self._addresses[1:]
        self._gone: set[int] = set()
        self._routing: Any = None
        self._before = (0, 0)  # bytes allocated and reserved when the lending began

    def is_home(self, index: int) -> bool:
        return index not in self._gone

    def scratch(self) -> int:
        """Bytes that lie idle in the pool. The next window's code gets them before it asks the driver."""
        return self._backend.idle_in(self._pool)

    def begin(self) -> None:
        """No kernel, on whatever stream, may still be reading the weights; and no library may keep a workspace that it
        first asks for inside."""
        self._backend.warm(self._index)
        self._backend.synchronize(self._index)

    def evict(self, index: int) -> None:
        if index not in self._gone:
            self._gone.add(index)
            self._backend.resize(self.slabs[index], 0)

    def lend(self, lent: int) -> None:
        backend, index = self._backend, self._index
        backend.reset_peak(index)
        self._before = (backend.allocated(index), backend.reserved(index))
        self._route()

    def end_lending(self) -> Usage | None:
        if self._routing is None:
            return None
        self._unroute()
        allocated, reserved = self._before
        peak = self._backend.peak_allocated(self._index) - allocated
        return Usage(max(0, peak), max(0, self._backend.reserved(self._index) - reserved))

    @contextmanager
    def aside(self) -> Iterator[None]:
        routed = self._routing is not None
        self._unroute()
        try:
            yield
        finally:
            if routed:
                self._route()

    def keep(self, tree: Any) -> Any:
        with self.aside():  # the copies come from the ordinary pool
            return tree_map_only(Tensor, lambda tensor: tensor.clone(), tree)

    def retake(self, indices: Sequence[int]) -> None:
        """Raises `AddressLost`, once every slab has memory again, if some stand elsewhere now."""
        gone = sorted(index for index in indices if index in self._gone)
        if not gone:
            return
        self._backend.synchronize(self._index)  # what the lent code left running still uses these bytes
        with torch.inference_mode(False):
            left = [index for index in gone if not self._take(index)]
            if left:
                self._backend.clear_workspaces()
                self._move_survivors(left)
                left = [index for index in left if not self._take(index)]
            for index in left:
                self._take_anywhere(index)
        if left:
            raise AddressLost(
                f"{len(left)} of {len(gone)} evicted units could not return to their addresses: something that was "
                "allocated inside the window still lives there; return it through `window.keep`."
            )

    def _take(self, index: int) -> bool:
        """Takes one slab at its old address. What the allocator offers elsewhere is held aside meanwhile."""
        backend, slab, size = self._backend, self.slabs[index], self._sizes[index]
        ballast: list[Tensor] = []
        reserved = backend.reserved(self._index)
        with backend.use_pool(self._pool, self._index):
            for _ in range(_ATTEMPTS):
                backend.resize(slab, size)
                if backend.address(slab) == self._addresses[index]:
                    self._gone.discard(index)
                    return True
                backend.resize(slab, 0)
                if backend.reserved(self._index) > reserved:
                    return False  # a new segment: the old place is taken
                ballast.append(backend.empty(size, self._index))
        return False

    def _take_anywhere(self, index: int) -> None:
        """The bytes matter more than the address: every view follows the slab's storage."""
        with self._backend.use_pool(self._pool, self._index):
            self._backend.resize(self.slabs[index], self._sizes[index])
        self._addresses[index] = self._backend.address(self.slabs[index])
        self._gone.discard(index)

    def _move_survivors(self, indices: Sequence[int]) -> None:
        """Moves tensors that were made inside the window and live in lent bytes to the ordinary pool, in place: every
        tensor on the same storage follows."""
        ranges = [(self._addresses[i], self._addresses[i] + self._sizes[i]) for i in indices]
        device = self._backend.device(self._index)
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor) and thing.layout is torch.strided and thing.device == device:
                begin = self._backend.address(thing)
                end = begin + thing.untyped_storage().nbytes()
                if any(begin < stop and start < end for start, stop in ranges):
                    self._move(thing)

    def _move(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (nbytes,), (1,))
        aside = whole.clone()
        self._backend.resize(tensor, 0)
        self._backend.resize(tensor, nbytes)
        whole.copy_(aside)

    def _route(self) -> None:
        self._routing = self._backend.use_pool(self._pool, self._index)
        self._routing.__enter__()

    def _unroute(self) -> None:
        routing, self._routing = self._routing, None
        if routing is not None:
            routing.__exit__(None, None, None)
