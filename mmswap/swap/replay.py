"""From lifetimes to the bytes that must really be there: the traced events, run through an allocator's own policy.

Pure arithmetic over ints; knows no tensor and no card:

    growth(tracker.events, region=lent)     # bytes that must be free outside of `lent` contiguous lent bytes
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from mmswap.swap.tracker import Event
from mmswap.units import MIB

ROUND = 512


@dataclass(frozen=True, slots=True)
class Policy:
    """How an allocator takes memory from the device.

    `small`: largest request that lives in a pool of its own (0: there is one pool), in segments of `small_segment`.
    Requests below `alone` share segments of `large_segment`; larger ones get a segment of their own, rounded up to
    `small_segment`. A large block is split when more than `small` would be left over. `large_segment` 0 means that
    there are no segments: one arena grows by exactly what is missing.
    """

    small: int
    small_segment: int
    large_segment: int
    alone: int


TORCH = Policy(small=MIB, small_segment=2 * MIB, large_segment=20 * MIB, alone=10 * MIB)
"""torch's caching allocator for CUDA and ROCm, default settings (constants: c10/core/AllocatorConfig.h, 2.13)."""

ARENA = Policy(small=0, small_segment=ROUND, large_segment=0, alone=0)
"""The simulated card: best fit, splitting and merging as in torch, but no segments, which dwarf a small model."""


class Block:
    """A piece of one segment, free or taken, and its neighbours there."""

    __slots__ = ("address", "following", "free", "pool", "previous", "size")

    def __init__(self, size: int, address: int, pool: int) -> None:
        self.size = size
        self.address = address
        self.pool = pool
        self.free = False
        self.previous: Block | None = None
        self.following: Block | None = None


class Allocator:
    """512-byte rounding, best fit, splitting, merging of free neighbours; what was taken is never given back.

    It starts with `region` free bytes in one piece: the lent slabs. They lie in the large pool, as a segment of
    their own, so under `TORCH` requests up to 1 MiB never use them.

    Attributes:
        peak_growth: bytes taken from the device beyond the region.
    """

    def __init__(self, region: int = 0, policy: Policy = ARENA) -> None:
        self.policy = policy
        self.peak_growth = 0
        self._top = 0
        self._pools: tuple[list[tuple[int, int, Block]], ...] = ([], [])
        self._tail: Block | None = None
        usable = region // ROUND * ROUND
        if usable > 0:
            self._release(Block(usable, 0, pool=1))
            self._top = usable + ROUND

    def malloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes` (> 0) bytes, from the smallest free one that holds it, or from the device."""
        assert nbytes > 0, nbytes
        size = -(-nbytes // ROUND) * ROUND
        pool = 0 if size <= self.policy.small else 1
        free = self._pools[pool]
        index = bisect.bisect_left(free, (size, 0))
        block = free.pop(index)[2] if index < len(free) else self._take(size, pool)
        self._split(block, size)
        block.free = False
        return block

    def free(self, block: Block) -> None:
        """Gives a block back; free neighbours of the same segment become one."""
        assert not block.free, "freed twice"
        before, after = block.previous, block.following
        if after is not None and after.free:
            self._forget(after)
            self._join(block, after)
        if before is not None and before.free:
            self._forget(before)
            self._join(before, block)
            block = before
        self._release(block)

    def _take(self, size: int, pool: int) -> Block:
        if self.policy.large_segment == 0:
            return self._extend(size)
        unit = self.policy.small_segment
        if pool == 0:
            segment = unit
        else:
            segment = self.policy.large_segment if size < self.policy.alone else -(-size // unit) * unit
        self.peak_growth += segment
        block = Block(segment, self._top, pool)
        self._top += segment + ROUND  # segments never touch
        return block

    def _extend(self, size: int) -> Block:
        tail = self._tail
        if tail is not None and tail.free:
            self._forget(tail)
            missing = size - tail.size
            tail.size = size
            block = tail
        else:
            missing = size
            block = Block(size, self._top, pool=1)
            block.previous = tail
            if tail is not None:
                tail.following = block
        self._tail = block
        self._top += missing
        self.peak_growth += missing
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < ROUND or (block.pool == 1 and rest <= self.policy.small):
            return
        other = Block(rest, block.address + size, block.pool)
        other.previous, other.following = block, block.following
        if block.following is not None:
            block.following.previous = other
        block.following, block.size = other, size
        if self._tail is block:
            self._tail = other
        self._release(other)

    def _join(self, left: Block, right: Block) -> None:
        left.size += right.size
        left.following = right.following
        if right.following is not None:
            right.following.previous = left
        if self._tail is right:
            self._tail = left

    def _release(self, block: Block) -> None:
        block.free = True
        bisect.insort(self._pools[block.pool], (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        pool = self._pools[block.pool]
        del pool[bisect.bisect_left(pool, (block.size, block.address))]
        block.free = False


def growth(events: Iterable[Event], region: int = 0, policy: Policy = ARENA) -> int:
    """Bytes that must be free outside of `region` contiguous lent bytes for `events` to run; 0: it holds them all."""
    allocator = Allocator(region, policy)
    blocks: dict[int, Block] = {}
    for event in events:
        if event.delta > 0:
            blocks[event.ident] = allocator.malloc(event.delta)
        else:
            allocator.free(blocks.pop(event.ident))
    return allocator.peak_growth
