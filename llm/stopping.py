"""Between two layers of a prompt: its forward ends when nobody wants its answer any more, and others have their turn.

with stopping(layers, should_stop): outputs = model(**inputs)          # raises `Stopped`

Knows modules only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from mmswap.swap.between import aside, between

Meanwhile = Callable[[], None]


class Stopped(Exception):
    """The prompt is not read to its end."""


def never() -> bool:
    """Nobody stops anything."""
    return False


@contextmanager
def stopping(
    layers: Iterable[tuple[str, nn.Module]], should_stop: Callable[[], bool], meanwhile: Meanwhile | None = None
) -> Iterator[None]:
    """Inside the block `should_stop` is asked before each of the layers runs, and then `meanwhile` is called; with
    `never` and nothing nothing is done.

    Raises:
        Stopped: from the layer's call; whatever was under way is left.
    """
    if should_stop is never and meanwhile is None:
        yield
        return

    def look() -> None:
        if should_stop():
            raise Stopped
        if meanwhile is not None:
            with aside():
                meanwhile()

    with between([layer for _, layer in layers], look):
        yield
