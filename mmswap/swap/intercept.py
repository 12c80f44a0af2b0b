"""Lend a callable's place on one module instance, and give it back. Knows modules, nothing of what they compute.

`with intercepted(module, "forward", replacement): ...` puts `replacement` on the instance; the class is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

from mmswap.swap.between import is_aside

_MISSING = object()


@contextmanager
def intercepted(module: nn.Module, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Call `replacement` wherever `module.name` is called inside the block; whatever happens, it is undone after.

    The replacement shows the signature of what it replaces: libraries read it to choose what they pass. What runs
    `aside` (see `between`) finds the callable that stood there before.
    """
    before = module.__dict__.get(name, _MISSING)
    replaced = getattr(module, name)

    @wraps(replaced)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (replaced if is_aside() else replacement)(*args, **kwargs)

    module.__dict__[name] = call
    try:
        yield
    finally:
        if before is _MISSING:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = before
