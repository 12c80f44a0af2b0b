"""Lend a callable's place on one module instance, and give it back. Knows modules, nothing of what they compute.

`with intercepted(module, "forward", replacement): ...` puts `replacement` on the instance; the class is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

_MISSING = object()


@contextmanager
def intercepted(module: nn.Module, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Call `replacement` wherever `module.name` is called inside the block; whatever happens, it is undone after.

    The replacement shows the signature of what it replaces: libraries read it to choose what they pass.
    """
    before = module.__dict__.get(name, _MISSING)
    module.__dict__[name] = wraps(getattr(module, name))(replacement)
    try:
        yield
    finally:
        if before is _MISSING:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = before
