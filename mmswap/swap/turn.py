"""Whose turn it is: one at a time, others wait, and no interrupt leaves it taken. Knows nothing about memory."""

from __future__ import annotations

import threading

from mmswap.errors import WindowMisuse
from mmswap.swap import interrupts

_POLL = 0.02  # seconds between looks at somebody else's turn; between them an interrupt gets through


class Turn:
    """One claim to a turn. Belongs to the thread that makes it."""

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.over = threading.Event()


class Turns:
    """A lock whose state is a single dict entry: `setdefault` takes it or does not, with nothing in between."""

    def __init__(self) -> None:
        self._slot: dict[str, Turn] = {}

    @property
    def taken(self) -> bool:
        return bool(self._slot)

    def has(self, turn: Turn | None) -> bool:
        return turn is not None and self._slot.get("turn") is turn

    def take(self, turn: Turn, misuse: str) -> None:
        """Waits for the turn.

        Raises:
            WindowMisuse: this thread has it already; the message is `misuse`.
        """
        while (holder := self._slot.setdefault("turn", turn)) is not turn:
            if holder.owner == turn.owner:
                raise WindowMisuse(misuse)
            holder.over.wait(_POLL)
            interrupts.deliver()

    def give_back(self, turn: Turn | None) -> None:
        """Doing it twice, or without having had it, is no error."""
        if turn is not None:
            if self.has(turn):
                del self._slot["turn"]
            turn.over.set()
