"""transformers' loading progress, handed to a function of ours. Knows no model.

with progress_to(lambda done, total: ...):
    kind.from_pretrained(...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as library_logging

Progress = Callable[[int, int], None]


class _Counter:
    """Stands in for transformers' progress bar and hands the counts on."""

    def __init__(self, items: Iterable[Any] | None, progress: Progress | None, total: int | None) -> None:
        self._items, self._progress = items if items is not None else (), progress
        self._total = total if total is not None else len(items) if hasattr(items, "__len__") else 0  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for count, item in enumerate(self._items, start=1):
            yield item
            if self._progress is not None:
                self._progress(count, max(self._total, count))

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@contextmanager
def progress_to(progress: Progress | None) -> Iterator[None]:
    """Hand transformers' loading progress to `progress`, or to nobody; its own bar stays away."""
    hook = getattr(library_logging, "set_tqdm_hook", None)
    if hook is None:
        yield
        return

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Counter:
        return _Counter(args[0] if args else kwargs.get("iterable"), progress, kwargs.get("total"))

    before = hook(count)
    try:
        yield
    finally:
        hook(before)
