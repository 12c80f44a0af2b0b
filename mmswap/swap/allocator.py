"""An allocator's policy over addresses that stand for nothing: who gets which bytes, and when the device is asked.

Knows no tensor and no event; `replay` runs lifetimes through it. The rules are those of torch's caching allocator
(c10/cuda/CUDACachingAllocator.cpp; constants: c10/core/AllocatorConfig.h, torch 2.13), one stream, default settings:

    allocator = allocator_of(TORCH, limit=1 << 30);  block = allocator.malloc(3 << 20);  allocator.free(block)
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from mmswap.units import MIB

ROUND = 512


@dataclass(frozen=True, slots=True)
class Policy:
    """How an allocator takes memory from the device.

    `small`: largest request that lives in a pool of its own (0: there is one pool), in segments of `small_segment`.
    Requests below `alone` share segments of `large_segment`; larger ones get a segment of their own, rounded up to
    `small_segment`. A large block is split when more than `small` would be left over.

    `expandable`: one segment per pool instead, which grows by pages of `small_segment` and `large_segment`; blocks are
    split wherever 512 bytes or more would be left over.
    """

    small: int
    small_segment: int
    large_segment: int
    alone: int
    expandable: bool = False

    def page(self, pool: int) -> int:
        """Bytes by which an expandable pool (0 small, 1 large) grows at a time."""
        return self.large_segment if pool else self.small_segment


TORCH = Policy(small=MIB, small_segment=2 * MIB, large_segment=20 * MIB, alone=10 * MIB)
"""torch's caching allocator for CUDA and ROCm, default settings."""

EXPANDABLE = Policy(small=MIB, small_segment=2 * MIB, large_segment=20 * MIB, alone=0, expandable=True)
"""The same under `PYTORCH_ALLOC_CONF=expandable_segments:True`."""

ARENA = Policy(small=0, small_segment=ROUND, large_segment=ROUND, alone=0, expandable=True)
"""The simulated card: best fit, splitting and merging as in torch, but no segments, which dwarf a small model."""


class OutOfRoom(Exception):
    """The device has less left than a segment takes, and giving cached ones back did not help."""


class Block:
    """A piece of one segment, free or taken, and its neighbours there. `mapped` False: only the address is there."""

    __slots__ = ("address", "expandable", "following", "free", "lent", "mapped", "pool", "previous", "size")

    def __init__(self, size: int, address: int, pool: int, *, expandable: bool = False, lent: bool = False) -> None:
        self.size = size
        self.address = address
        self.pool = pool
        self.expandable = expandable
        self.lent = lent
        self.free = False
        self.mapped = True
        self.previous: Block | None = None
        self.following: Block | None = None


class Allocator:
    """512-byte rounding, best fit, splitting, merging of free neighbours; segments are kept until room runs out.

    Args:
        region: free bytes in one piece with which it starts: the lent slabs. They lie in the large pool, as a segment
            of their own, so under `TORCH` requests up to 1 MiB never use them; they are never given back.
        policy: `TORCH`, `EXPANDABLE` or `ARENA`; see `allocator_of`.
        limit: bytes that the device can give beyond the region; None: as many as are asked for.

    Attributes:
        reserved: bytes that the device has given and not got back, the region not counted.
        peak_growth: the most they ever were.
        releases: how often room ran out and cached segments were given back.
    """

    def __init__(self, region: int = 0, policy: Policy = TORCH, limit: int | None = None) -> None:
        self.policy = policy
        self.limit = limit
        self.reserved = 0
        self.peak_growth = 0
        self.releases = 0
        self._top = 0
        self._pools: tuple[list[tuple[int, int, Block]], ...] = ([], [])
        usable = region // ROUND * ROUND
        if usable > 0:
            self._release(Block(usable, 0, pool=1, lent=True))
            self._top = usable + ROUND

    def malloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes` (> 0) bytes, from the best fitting free one, or from the device.

        Raises:
            OutOfRoom: the limit leaves no room, even after every cached segment was given back.
        """
        assert nbytes > 0, nbytes
        size = -(-nbytes // ROUND) * ROUND
        pool = 0 if size <= self.policy.small else 1
        block = self._found(size, pool)
        if block is None:
            try:
                block = self._taken(size, pool)
            except OutOfRoom:
                self.release_cached()
                block = self._taken(size, pool)
        self._split(block, size)
        block.free = False
        return block

    def free(self, block: Block) -> None:
        """Gives a block back; free neighbours of the same segment become one."""
        assert not block.free, "freed twice"
        self._release(self._merged(block))

    def release_cached(self) -> None:
        """Gives back to the device what it can take: segments in which nothing is taken, the region excepted."""
        self.releases += 1
        for pool in self._pools:
            for _, _, block in list(pool):
                if block.previous is None and block.following is None and not block.lent:
                    self._forget(block)
                    self.reserved -= block.size

    def _found(self, size: int, pool: int) -> Block | None:
        """The smallest free block that holds `size`; of equal ones that of the lowest address."""
        free = self._pools[pool]
        index = bisect.bisect_left(free, (size, 0))
        return free.pop(index)[2] if index < len(free) else None

    def _taken(self, size: int, pool: int) -> Block:
        unit = self.policy.small_segment
        if pool == 0:
            segment = unit
        else:
            segment = self.policy.large_segment if size < self.policy.alone else -(-size // unit) * unit
        self._grow(segment)
        block = Block(segment, self._top, pool)
        self._top += segment + ROUND  # segments never touch
        return block

    def _grow(self, nbytes: int) -> None:
        if self.limit is not None and self.reserved + nbytes > self.limit:
            raise OutOfRoom
        self.reserved += nbytes
        self.peak_growth = max(self.peak_growth, self.reserved)

    def _leaves(self, rest: int, pool: int) -> bool:
        """Whether so many bytes left over become a block of their own."""
        return rest > self.policy.small if pool == 1 and not self.policy.expandable else rest >= ROUND

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if rest < ROUND or not self._leaves(rest, block.pool):
            return
        other = Block(rest, block.address + size, block.pool, expandable=block.expandable, lent=block.lent)
        other.previous, other.following = block, block.following
        if block.following is not None:
            block.following.previous = other
        block.following, block.size = other, size
        self._release(other)

    def _merged(self, block: Block) -> Block:
        """`block`, one with its free neighbours."""
        before, after = block.previous, block.following
        if after is not None and after.free:
            self._forget(after)
            _join(block, after)
        if before is not None and before.free:
            self._forget(before)
            _join(before, block)
            block = before
        return block

    def _release(self, block: Block) -> None:
        block.free = True
        bisect.insort(self._pools[block.pool], (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        pool = self._pools[block.pool]
        del pool[bisect.bisect_left(pool, (block.size, block.address))]
        block.free = False


def _join(left: Block, right: Block) -> None:
    left.size += right.size
    left.following = right.following
    if right.following is not None:
        right.following.previous = left
