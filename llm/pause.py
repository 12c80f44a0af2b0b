"""Where an answer lets others have their turn. Values; knows no model."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

_T = TypeVar("_T")


class Pause(Enum):
    """What an answer that is advanced gives beside its tokens or its text.

    STEP: a token is about to go through the model. Whoever advances several answers may take their tokens through
        together, and hand each its logits; else the answer does it by itself.
    ROOM: its KV cache may not grow now. Advanced again, it asks again.
    """

    STEP = "step"
    ROOM = "room"


def next_of(moves: Iterator[_T | Pause]) -> _T:
    """What comes next, for who has nobody beside it: pauses are passed over.

    Raises:
        StopIteration: nothing comes any more.
    """
    while isinstance(found := next(moves), Pause):
        pass
    return found
