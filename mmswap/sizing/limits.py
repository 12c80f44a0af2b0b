"""The largest number that still fits, by bisection. Pure; the question is the caller's."""

from __future__ import annotations

from collections.abc import Callable


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest n in `low..high` for which `fits(n)`, of numbers of which the smaller fit; None if none does.

    Both sides are asked: `fits` holds for the answer and not for its successor, unless the answer is `high`.
    """
    if high < low or not fits(low):
        return None
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
