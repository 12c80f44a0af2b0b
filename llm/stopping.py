"""Ends the forward of a prompt between two layers, when nobody wants its answer any more. Knows modules only.

with stopping(layers, should_stop): outputs = model(**inputs)          # raises `Stopped`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Stopped(Exception):
    """The prompt is not read to its end."""


def never() -> bool:
    """Nobody stops anything."""
    return False


@contextmanager
def stopping(layers: Iterable[tuple[str, nn.Module]], should_stop: Callable[[], bool]) -> Iterator[None]:
    """Inside the block `should_stop` is asked before each of the layers runs; with `never` nothing is done.

    Raises:
        Stopped: from the layer's call; whatever was under way is left.
    """
    if should_stop is never:
        yield
        return

    def look(*_: Any) -> None:
        if should_stop():
            raise Stopped

    hooks = [layer.register_forward_pre_hook(look) for _, layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
