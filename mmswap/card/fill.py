"""What was sized from free bytes, checked once it is placed: a budget may fall as the card fills. Knows no model.

    tokens = fill(tokens, place, card.free, bytes_per_token, say)

`place(n)` is a context manager that really takes the bytes of n units for as long as it is entered, and gives False
where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from mmswap.card.base import Card
from mmswap.card.budget import Reading
from mmswap.card.simulated import SimulatedCard
from mmswap.units import format_bytes

SLACK_PART = 8  # of the card: what leaves that much free needs no check

Place = Callable[[int], AbstractContextManager[bool]]


def fill(
    amount: int,
    place: Place,
    reading: Callable[[], Reading],
    per_unit: int | Callable[[int], int],
    say: Callable[[str], None],
    *,
    what: str = "the context",
    unit: str = "tokens",
    smallest: int = 0,
) -> int:
    """The largest of what was tried, from `amount` downwards, that is within the budget once it is placed.

    Args:
        amount: units that free bytes seemed to allow.
        place: takes the bytes of so many units while its context lasts; may raise `torch.OutOfMemoryError`.
        reading: what is free now.
        per_unit: bytes of one unit; or a function that gives those of so many, growing with them.
        say: told at each step what was found and what follows.
        smallest: less than this is not tried; it is returned even if it does not fit.

    Each step lowers the amount, so it ends whatever the budget does.
    """
    size = per_unit if callable(per_unit) else lambda units: units * per_unit
    while amount > smallest:
        room = _room(size(amount), place, reading, amount)
        if room is None:
            return amount
        fewer = max(smallest, min(amount - 1, most_within(room, amount, size)))
        free = format_bytes(max(0, room))
        say(f"only {free} free once placed: shrinking {what} from {amount} to {fewer} {unit}")
        amount = fewer
    return amount


def over_once_placed(card: Card, label: str, nbytes: int, free: Callable[[], Reading]) -> int:
    """Bytes by which the card would be over its budget with `nbytes` more on it; 0 if they fit.

    They are really placed if they seem to fit and the card is nearly full with them: a budget falls by about a
    sixteenth of the card as that fills, so what leaves twice as much free is not worth an allocation. A ledger costs
    nothing to write to.
    """
    reading = free()
    missing = nbytes - (reading.bytes - reading.over)
    if missing > 0:
        return missing
    ledger = isinstance(card, SimulatedCard)
    if not nbytes or (not ledger and missing + card.total() // SLACK_PART <= 0):
        return 0
    room = _room(nbytes, lambda _: card.placed(label, nbytes), free, 0)
    return 0 if room is None else nbytes - room


def _room(nbytes: int, place: Place, reading: Callable[[], Reading], amount: int) -> int | None:
    """Of `nbytes`, those that are within the budget once placed, below 0 where less would be over too; None if all."""
    try:
        with place(amount) as there:
            over = reading().over
    except torch.OutOfMemoryError:
        there, over = False, max(0, nbytes - reading().bytes)
    if there is False:  # the card says no: less than was asked for, whatever it calls free
        over = max(over, nbytes // 16, 1)
    return nbytes - over if over else None


def most_within(room: int, below: int, size: Callable[[int], int]) -> int:
    """The most units below `below` whose size is within `room`; 0 if one is too many."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) <= room else (low, middle)
    return low
