"""Names of a package that are looked up when they are used, so that importing it costs next to nothing.

__getattr__ = late(__name__, {"Card": "base", "open_card": "opening"})      # name -> module of the package
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package` that finds each name in `homes` in its module."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
