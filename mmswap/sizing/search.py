"""The longest context and the largest picture that still fit. Asks a planner; traces as few pictures as it can.

A picture is sought on the curve through what was traced, then traced itself; the curve is laid through it, and asked
again, until it says the same. So the answer is confirmed by a dry run, and its neighbour is refused by the curve there.
Where a dry run of that size would take long, the curve's word stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from mmswap.config import ImageConfig
from mmswap.sizing.answer import Limits
from mmswap.sizing.bounds import CAP, ENCODER, PROMPT, TOKENS
from mmswap.sizing.facts import Cost
from mmswap.sizing.limits import largest
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


@dataclass(frozen=True, slots=True)
class Found:
    """The limits, what caps a picture, and what is in the way of more: words of `bounds`.

    Attributes:
        apart: the largest with a window are encoded one at a time.
    """

    limits: Limits
    cap: Cap
    context: str
    context_with_window: str
    image: str
    image_with_window: str
    apart: bool


def limits_of(planner: Planner) -> Found:
    """What is the most that fits, and why no more does."""
    seek = _Search(planner, planner.wish.images)
    plain, first = seek.context(window=False), seek.edge(window=False)
    window, second, apart = plain, first, False
    if planner.room.swaps:
        window, second = max(plain, seek.context(window=True)), max(first, seek.edge(window=True))
    if planner.room.swaps and planner.wish.images > 1:
        alone = _Search(planner, 1)
        longer, larger = alone.context(window=True), second if second == seek.cap.edge else alone.edge(window=True)
        apart = longer > window or larger > second
        window, second = max(window, longer), max(second, larger)
    sizes = [seek.scale.size(edge) if edge else (0, 0) for edge in (first, second)]
    return Found(
        Limits(plain, window, sizes[0], sizes[1], seek.cap.size),
        seek.cap,
        seek.end_of_context(plain),
        seek.end_of_context(window),
        seek.end_of_edge(first),
        seek.end_of_edge(second),
        apart,
    )


class _Search:
    """Of pictures that are encoded `count` at a time; features and tokens are those of all that were asked for."""

    def __init__(self, planner: Planner, count: int) -> None:
        self.planner = planner
        self.scale = Scale(planner.wish.width, planner.wish.height)
        self.decoded = self.scale.edge_of(ImageConfig().decode_limit)
        self.count, self.times = count, planner.wish.images // count
        self.cost = planner.pictures.cost(planner.wish.width, planner.wish.height, count)

    def context(self, *, window: bool) -> int:
        """Tokens of the longest context in which the pictures that were asked for fit; 0 if there is none."""
        need, features = self._need(self.cost), self.cost.features * self.times

        def fits(context: int) -> bool:
            return self.planner.holds(need, features, context, window=window)

        return largest(self.planner.cost.picture.tokens + 1, self.planner.most, fits) or 0

    def end_of_context(self, context: int) -> str:
        """What is in the way of one token more."""
        if context == self.planner.most:
            return CAP
        more = (context or self.planner.cost.picture.tokens) + 1
        return PROMPT if self.planner.step(more, self.planner.cost.features) is None else ENCODER

    def end_of_edge(self, edge: int) -> str:
        """What is in the way of a picture with a longer side."""
        if edge == self.cap.edge:
            return CAP
        cost, patches = self.cost, self._patches(edge + 1)
        if self.times * cost.picture.tokens * patches // cost.picture.patches >= self.planner.context:
            return TOKENS
        features = self.times * cost.features * patches // cost.picture.patches
        return PROMPT if self.planner.step(self.planner.context, features) is None else ENCODER

    def _need(self, cost: Cost) -> Callable[[int], int]:
        """Bytes outside of lent ones, the features of the pictures that are encoded before or after included."""
        return lambda lent: cost.need(lent) + (self.times - 1) * cost.features

    @cached_property
    def cap(self) -> Cap:
        """Found by asking the processor for ever larger pictures, up to what is decoded at all."""
        top = self._patches(self.decoded)
        if self._patches(_TINY) == top:
            seen = self.cost.colours // self.cost.images // (3 * 4 * self.planner.about.frames)  # 3 colours of 4 bytes
            edge = min(self.decoded, self.scale.edge_of(seen))
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
        planner, near, best = self.planner, self.cost, 0
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
            cost = planner.pictures.cost(*self.scale.size(edge), self.count)
            tokens, features = self.times * cost.picture.tokens, self.times * cost.features
            if tokens < planner.context and planner.holds(self._need(cost), features, planner.context, window=window):
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
        beside = (self.times - 1) * near.features
        outside = near.need(near.total) if window else 0  # what lent bytes cannot serve, however many they are

        def fits(patches: int, total: int | None = None) -> bool:
            total = planner.pictures.predicted(patches, near) if total is None else total

            def need(lent: int) -> int:
                own = max(total - lent, -(-outside * total // near.total)) if lent else total
                return own + beside * patches // known

            features = self.times * near.features * patches // known
            seen = self.times * near.picture.tokens * patches // known
            return seen < planner.context and planner.holds(need, features, planner.context, window=window)

        top = self._patches(self.cap.edge)
        line = -(-near.total * top // known)  # enough where a dry run has the last word: a curve takes several
        if most >= top and ((planner.pictures.confirms(top, near) and fits(top, line)) or fits(top)):
            return self.cap.edge
        patches = largest(1, most, fits)
        if patches is None:
            return 0
        return largest_edge(self.cap.edge, self._patches, patches, min(self.cap.edge, max(near.width, near.height)))

    def _patches(self, edge: int) -> int:
        return self.planner.pictures.patches(*self.scale.size(edge), self.count)
