"""The spill watch that belongs to a card: what it reads, and by how much that may move. Knows no model."""

from __future__ import annotations

from collections.abc import Callable

from mmswap.card.base import Card
from mmswap.card.simulated import SimulatedCard
from mmswap.card.spill import SpillWatch


def watch_of(card: Card, *, pinned: Callable[[], int] = lambda: 0) -> SpillWatch:
    """A watch on `card`, its baseline taken now: to be called after this process has pinned what it keeps.

    Args:
        pinned: bytes that are pinned by us, now and later.
    """

    def read() -> int | str:
        found = card.spilled()
        return found.bytes if found.how else found.cause

    how = card.spilled().how
    if isinstance(card, SimulatedCard):  # a ledger: exact, and it knows no pins
        return SpillWatch(read, how=how, slack=0, base=0, alone=False)
    watch = SpillWatch(read, how=how, pinned=pinned)
    watch.rebase()
    return watch
