"""The longest context and the largest picture that still fit. Asks a planner; traces as few pictures as it can.

A picture is sought on the curve through what was traced, then traced itself; the curve is laid through it, and asked
again, until it says the same. So the answer is confirmed by a dry run, and its neighbour is refused by the curve there.
Where a dry run of that size would take long, the curve's word stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mmswap.config import ImageConfig
from mmswap.sizing.answer import Limits
from mmswap.sizing.limits import largest
from mmswap.sizing.pictures import Cost
from mmswap.sizing.planner import Planner
from mmswap.sizing.scales import Scale, largest_edge

_ROUNDS = 3  # dry runs in search of one limit
_TINY = 64  # pixels of the longer side; a picture that costs what the largest does comes from a tower of one size
_BEYOND = (16, 32, 64)  # pixels of the longer side beyond the first that has as many patches as the largest of all


@dataclass(frozen=True, slots=True)
class Cap:
    """The longer side above which pictures cost no more; `fixed`: all cost the same, as the tower has one size."""

    edge: int
    size: tuple[int, int]
    fixed: bool


def limits_of(planner: Planner) -> tuple[Limits, Cap]:
    """The limits, and what caps the picture."""
    seek = _Search(planner)
    plain, window = seek.context(window=False), seek.context(window=True)
    first = seek.edge(window=False)
    second = max(first, seek.edge(window=True)) if planner.room.swaps else first
    sizes = [seek.scale.size(edge) if edge else (0, 0) for edge in (first, second)]
    return Limits(plain, max(plain, window), *sizes), seek.cap


class _Search:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.scale = Scale(planner.wish.width, planner.wish.height)
        self.decoded = self.scale.edge_of(ImageConfig().decode_limit)

    def context(self, *, window: bool) -> int:
        """Tokens of the longest context in which the pictures that were asked for fit; 0 if there is none."""
        planner, cost = self.planner, self.planner.cost

        def fits(context: int) -> bool:
            return planner.holds(cost.need, cost.features, context, window=window)

        return largest(cost.picture.tokens + 1, planner.most, fits) or 0

    @cached_property
    def cap(self) -> Cap:
        """Found by asking the processor for ever larger pictures, up to what is decoded at all."""
        top = self._patches(self.decoded)
        if self._patches(_TINY) == top:
            cost = self.planner.cost
            edge = min(self.decoded, self.scale.edge_of(cost.pixels // cost.images // (3 * 4)))  # 3 colours of 4 bytes
            return Cap(edge, self.scale.size(edge), fixed=True)
        edge = self._first(top)
        for step in _BEYOND:  # bounds are rounded down when a picture is shrunk a lot: the most may be a little above
            if self._patches(min(self.decoded, edge + step)) > top:
                top = self._patches(min(self.decoded, edge + step))
                edge = self._first(top, edge, edge + step)
        return Cap(edge, self.scale.size(edge), fixed=False)

    def _first(self, patches: int, low: int = 1, high: int | None = None) -> int:
        """A side whose picture has so many patches, and hardly more than the least one, between two others."""
        known, high = min(self.scale.edge, self.decoded), self.decoded if high is None else high
        while known > 1 and self._patches(known) >= patches:
            known //= 2
        guess = math.isqrt(patches * known * known // self._patches(known))
        if low <= guess <= high and self._patches(guess) == patches:
            return guess
        return (largest(low, high, lambda edge: self._patches(edge) < patches) or low) + 1

    def edge(self, *, window: bool) -> int:
        """The longer side of the largest picture up to the cap that fits; 0 if none does."""
        planner, near, best = self.planner, self.planner.cost, 0
        most = self._patches(self.cap.edge)
        if planner.step(planner.context, 0) is None:
            return 0
        for _ in range(_ROUNDS):
            edge = self._by_curve(near, most, window=window)
            if edge <= best:
                break
            patches = self._patches(edge)
            if not planner.pictures.confirms(patches, near):
                return edge
            cost = planner.pictures.cost(*self.scale.size(edge), planner.wish.images)
            tokens = cost.picture.tokens
            if tokens < planner.context and planner.holds(cost.need, cost.features, planner.context, window=window):
                best = edge
            else:
                most = patches - 1  # the curve was wrong there, and is asked for less
            if best == self.cap.edge or (best == edge and patches == near.picture.patches):
                break
            near = cost
        return best

    def _by_curve(self, near: Cost, most: int, *, window: bool) -> int:
        """A longer side by the curve that is laid through `near`, of at most so many patches."""
        planner, known = self.planner, near.picture.patches
        outside = near.need(near.total) if window else 0  # what lent bytes cannot serve, however many they are

        def fits(patches: int) -> bool:
            total = planner.pictures.predicted(patches, near)

            def need(lent: int) -> int:
                return max(total - lent, -(-outside * total // near.total)) if lent else total

            features = near.features * patches // known
            seen = near.picture.tokens * patches // known
            return seen < planner.context and planner.holds(need, features, planner.context, window=window)

        if most >= self._patches(self.cap.edge) and fits(most):
            return self.cap.edge
        patches = largest(1, most, fits)
        if patches is None:
            return 0
        return largest_edge(self.cap.edge, self._patches, patches, min(self.cap.edge, max(near.width, near.height)))

    def _patches(self, edge: int) -> int:
        return self.planner.pictures.patches(*self.scale.size(edge), self.planner.wish.images)
