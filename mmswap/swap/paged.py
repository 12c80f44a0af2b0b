"""Expandable segments: one address range per pool, backed by pages as it is used. Same caller's side as `Allocator`.

Knows no tensor. The range is endless; free blocks lie in it between taken ones and holes without pages behind them.
"""

from __future__ import annotations

import bisect

from mmswap.swap.allocator import Allocator, Block, Policy, _join

_ENDLESS = 1 << 50


class PagedAllocator(Allocator):
    """A pool grows by the pages that are missing behind its lowest free stretch; a release gives whole pages back."""

    def __init__(self, region: int = 0, policy: Policy | None = None, limit: int | None = None) -> None:
        assert policy is not None
        assert policy.expandable
        super().__init__(region, policy, limit)
        self._spaces: tuple[list[tuple[int, Block]], ...] = ([], [])
        for pool in (0, 1):
            base = policy.page(pool) << (60 + pool)  # pages begin at multiples of their size; above every region
            self._leave_unmapped(Block(_ENDLESS * policy.page(pool), base, pool, expandable=True))

    def release_cached(self) -> None:
        """Gives back every page that lies wholly inside a free block."""
        self.releases += 1
        for pool in self._pools:
            for _, _, block in list(pool):
                if block.expandable:
                    self._unmap(block)

    def _found(self, size: int, pool: int) -> Block | None:
        """As above, but a block that could grow counts with all it could grow to: it is the last to be used."""
        free = self._pools[pool]
        index = bisect.bisect_left(free, (size, 0))
        if index == len(free):
            return None
        while free[index][2].expandable and index + 1 < len(free):
            if _reach(free[index + 1][2]) >= _reach(free[index][2]):
                break
            index += 1
        return free.pop(index)[2]

    def _taken(self, size: int, pool: int) -> Block:
        block = self._lowest(size, pool)
        if not block.mapped:
            block = self._map(block, min(block.size, size))
        while block.size < size:
            hole = block.following
            assert hole is not None
            block = self._map(hole, min(hole.size, size - block.size))
        self._forget(block)
        return block

    def _lowest(self, size: int, pool: int) -> Block:
        """Where the lowest stretch of free blocks and holes begins that is long enough and has a hole."""
        for _, hole in self._spaces[pool]:
            first = hole.previous if hole.previous is not None and hole.previous.free else hole
            length, block = 0, first
            while length < size and block is not None and (block.free or not block.mapped):
                length, block = length + block.size, block.following  # type: ignore[assignment]
            if length >= size:
                return first
        raise AssertionError("the last hole is endless")

    def _map(self, hole: Block, nbytes: int) -> Block:
        """Puts pages behind the first `nbytes` of a hole; the free block that it then is part of."""
        page = self.policy.page(hole.pool)
        nbytes = -(-nbytes // page) * page
        self._grow(nbytes)
        spaces = self._spaces[hole.pool]
        del spaces[bisect.bisect_left(spaces, (hole.address,))]
        hole.mapped = True
        if nbytes < hole.size:
            rest = Block(hole.size - nbytes, hole.address + nbytes, hole.pool, expandable=True)
            _insert(hole, rest)
            hole.size = nbytes
            self._leave_unmapped(rest)
        block = self._merged(hole)
        self._release(block)
        return block

    def _unmap(self, block: Block) -> None:
        page = self.policy.page(block.pool)
        begin = -(-block.address // page) * page
        end = (block.address + block.size) // page * page
        if begin >= end:
            return
        self._forget(block)
        self.reserved -= end - begin
        if end < block.address + block.size:
            after = Block(block.address + block.size - end, end, block.pool, expandable=True)
            _insert(block, after)
            block.size -= after.size
            self._release(after)
        if begin > block.address:
            hole = Block(end - begin, begin, block.pool, expandable=True)
            _insert(block, hole)
            block.size -= hole.size
            self._release(block)
            block = hole
        self._leave_unmapped(block)

    def _leave_unmapped(self, block: Block) -> None:
        """Makes a hole of `block`, one with the holes beside it."""
        block.mapped = False
        spaces = self._spaces[block.pool]
        for left, right in ((block, block.following), (block.previous, block)):
            if left is not None and right is not None and not left.mapped and not right.mapped:
                for known in (left, right):
                    place = bisect.bisect_left(spaces, (known.address,))
                    if place < len(spaces) and spaces[place][1] is known:
                        del spaces[place]
                _join(left, right)
                block = left
        bisect.insort(spaces, (block.address, block), key=lambda space: space[0])


def _insert(block: Block, after: Block) -> None:
    after.previous, after.following = block, block.following
    if block.following is not None:
        block.following.previous = after
    block.following = after


def _reach(block: Block) -> int:
    hole = block.following
    return block.size + (hole.size if hole is not None and not hole.mapped else 0)
