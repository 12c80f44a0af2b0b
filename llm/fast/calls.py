"""The ops of a lean step as they are chosen: each with the arguments that it was chosen for.

`with noted_calls() as calls: open_lean(model)` collects (op, arguments), for those who want to try them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mmswap.llm.ops import resolve

Call = tuple[str, tuple[Any, ...]]

_noted: list[Call] | None = None


def bind(op: str, *arguments: Any) -> Callable[..., Any]:
    """The implementation of an op for arguments like these, without the dispatcher's cost."""
    note(op, arguments)
    return resolve(op, *arguments).run


def note(op: str, arguments: tuple[Any, ...]) -> None:
    """Somebody else has chosen an op."""
    if _noted is not None:
        _noted.append((op, arguments))


@contextmanager
def noted_calls() -> Iterator[list[Call]]:
    """Everything that is bound inside the block."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before
