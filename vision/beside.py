"""Who else wants something while pictures are encoded, and what was encoded for them. Knows no model and no card.

`Others()` is nobody; `tower.run(call, Clock(others, spare).look)` lets others have their turn between two layers.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from mmswap.swap.arena import Arena
from mmswap.swap.between import aside
from mmswap.vision.job import Encoded

REMEMBERED = 64


def _nothing(spare: int | None) -> None:
    """Nobody waits between two layers."""


@dataclass(frozen=True, slots=True)
class Others:
    """See the module.

    Attributes:
        look: called between two layers of the tower with the bytes that nobody needs meanwhile; None: as the card
            says; -1 while weights are out. May raise, which ends the encoding.
        shortage: asked before the encoder makes do with less: True if something was given up for it meanwhile.
        pictures: inputs of other prompts whose pictures may be encoded in the same window.
    """

    look: Callable[[int | None], None] = _nothing
    shortage: Callable[[], bool] = bool
    pictures: Callable[[], list[Mapping[str, Tensor]]] = list


@contextmanager
def apart(arena: Arena | None) -> Iterator[None]:
    """What is done inside the block is not the encoder's: it is not counted, and takes no lent bytes."""
    with aside(), nullcontext() if arena is None else arena.aside():
        yield


class Clock:
    """Time of one tower call, without that of others: their turn comes with every `look`."""

    def __init__(self, others: Others, spare: int | None, arena: Arena | None = None) -> None:
        self._others, self._spare, self._arena = others, spare, arena
        self._begun, self._theirs = time.perf_counter(), 0.0

    def look(self) -> None:
        """Between two layers."""
        began = time.perf_counter()
        with apart(self._arena):
            self._others.look(self._spare)
        self._theirs += time.perf_counter() - began

    def milliseconds(self) -> float:
        """Since it was made."""
        return (time.perf_counter() - self._begun - self._theirs) * 1e3


class Ahead:
    """What is known of pictures that were encoded for a prompt before its turn; the last ones."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Encoded] = OrderedDict()

    def put(self, key: str, encoded: Encoded) -> None:
        """Remember it until it is asked for, without features."""
        self._known[key] = encoded
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def take(self, key: str) -> Encoded | None:
        """What was put there, once; None if there is nothing."""
        return self._known.pop(key, None)
