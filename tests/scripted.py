"""A runtime whose answers are scripted: it stands where a loaded one does, and waits and fails when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mmswap.answer import Answer
from mmswap.llm.pause import Pause
from mmswap.runtime import Runtime
from mmswap.swap.report import WindowReport

CLOSED = WindowReport(opened=False, reason="", need=0, free=0, deficit=0)


class Scripted:
    """Everything but answering is the real runtime's.

    Args:
        pieces: of every answer.
        before: called before each piece with its number; may wait, or raise.

    Attributes:
        asked: the last message of each prompt that was begun. closed: how many streams were closed.
    """

    def __init__(
        self, real: Runtime, pieces: Sequence[str] = ("a", "b", "c"), before: Callable[[int], Any] = int
    ) -> None:
        self._real, self._pieces, self.before = real, pieces, before
        self.asked: list[str] = []
        self.closed = 0
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def stream(self, messages: Any, *, should_stop: Callable[[], bool] = bool, **more: Any) -> _Stream:
        content = messages[-1]["content"]
        self.asked.append(content if isinstance(content, str) else content[-1]["text"])
        return _Stream(self, self._pieces, should_stop)


class _Stream(Iterator[str]):
    def __init__(self, runtime: Scripted, pieces: Sequence[str], should_stop: Callable[[], bool]) -> None:
        self.tokens: list[Any] = []
        self.answer = Answer("".join(pieces), "stop", 7, len(pieces), (), CLOSED, 1.0, 1.0, "scripted")
        self._runtime, self._pieces, self._should_stop = runtime, pieces, should_stop
        self.wanted = None
        self.moves = self._run()

    def _run(self) -> Iterator[str | Pause]:
        for number, piece in enumerate(self._pieces):
            if self._should_stop():
                return
            self._runtime.before(number)
            self._runtime.steps += 1
            yield piece
            yield Pause.STEP

    def __next__(self) -> str:
        while isinstance(found := next(self.moves), Pause):
            pass
        return found

    def close(self) -> None:
        self._runtime.closed += 1


class Gate:
    """Makes who comes wait until it is opened, and says that somebody came."""

    def __init__(self, at: int = 0) -> None:
        self._at, self.reached, self._open = at, threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number == self._at:
            self.reached.set()
            assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()
