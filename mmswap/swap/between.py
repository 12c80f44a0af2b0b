"""Work of others between two layers of a forward: called in front of each, and out of the way of what watches it.

    with between(layers, look): model(**inputs)              # `look()` before each layer
    with aside(): ...                                        # in `look`: what is put in a module's place is passed over

Knows modules only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

_depth = 0


def is_aside() -> bool:
    """Whether the code that runs is somebody else's, within a forward that is watched or redirected."""
    return _depth > 0


@contextmanager
def aside() -> Iterator[None]:
    """In the block modules are as they are: nothing that was put in their place for an outer forward takes part."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


@contextmanager
def between(layers: Iterable[nn.Module], look: Callable[[], None]) -> Iterator[None]:
    """Inside the block `look` is called before each of the layers runs, except from within itself.

    What it raises comes out of the layer's call.
    """

    def before(*_: object) -> None:
        if not is_aside():
            look()

    hooks = [layer.register_forward_pre_hook(before) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
