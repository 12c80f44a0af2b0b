"""Steps that may take the process down with them, run in another one: a crash or a hang costs one line each.

    for name, check in isolated(python_words(CODE, "cuda:0"), ["first kernel", "pinned memory"], limit=60): ...

The other process says on its standard output, a line each, which step it begins and what came of it. When it dies or
is late, the step at hand is told so, and a new process goes on with the next one.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from mmswap.doctor.check import Check

START_LIMIT = 120.0  # seconds until the first step begins: torch is imported before it
PATIENCE = 2  # steps without an answer, after which the rest is not tried
MARK = "mmswap-doctor "
_PATH = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "


class NoCard(Exception):
    """The other process does not see the card that this one sees."""


def python_words(code: str, *arguments: str) -> list[str]:
    """Runs `code` in this Python, with this process's import path (a bare `-c` would put the current folder first).

    Raises:
        OSError: this process does not know its own interpreter.
    """
    if not sys.executable:
        raise OSError("this Python does not know where its own interpreter is")
    return [sys.executable, "-c", _PATH + code, json.dumps(sys.path), *arguments]


def python_environment() -> dict[str, str]:
    """This process's variables, for a Python whose output is read here: UTF-8, whatever the console is."""
    return {**os.environ, "PYTHONIOENCODING": "utf-8:backslashreplace"}


def isolated(words: Sequence[str], steps: Sequence[str], limit: float) -> Iterator[tuple[str, Check]]:
    """Step and check, in order.

    Args:
        words: the program; the names of the steps are appended.
        limit: seconds for each step.

    Raises:
        NoCard: the process said so.
        OSError: it cannot be started.
    """
    left = list(steps)
    silent = 0
    while left:
        fate = "it ended without a word"
        with _Talk([*words, *left]) as talk:
            for found in talk.lines(limit):
                if isinstance(found, str):
                    fate = found
                    break
                if "no card" in found:
                    raise NoCard(str(found["no card"]))
                if found.get("step") == left[0]:
                    yield left[0], Check.of_json(left[0], found["check"])
                    left.pop(0)
                    if not left:
                        return
        yield left[0], Check(left[0], "unknown", "no answer", fate)
        left.pop(0)
        silent += 1
        if silent == PATIENCE:
            why = f"{PATIENCE} steps before it gave no answer"
            yield from ((name, Check(name, "unknown", "not tried", why)) for name in left)
            return


def speak(steps: Sequence[str], run: Callable[[str], Check]) -> None:
    """The other side: runs the steps and says what came of each."""
    for name in steps:
        say({"begin": name})
        say({"step": name, "check": run(name).to_json()})


def say(message: Mapping[str, Any]) -> None:
    """One line to the process that waits. ASCII, whatever the console's encoding."""
    print(MARK + json.dumps(message), flush=True)


class _Talk:
    """A running process, its lines, and its end."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=python_environment(),
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._complaints: list[str] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        _thread(_forward, self._process.stdout, self._lines.put)
        self._errors = _thread(_forward, self._process.stderr, self._complain)

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)  # stuck in its driver: left behind

    def lines(self, limit: float) -> Iterator[dict[str, Any] | str]:
        """Messages; a text at last, which says how it ended."""
        wait = START_LIMIT
        while True:
            try:
                line = self._lines.get(timeout=wait)
            except queue.Empty:
                yield f"it did not end within {wait:g} s, and was ended"
                return
            if line is None:
                yield self._end()
                return
            if line.startswith(MARK):
                wait = limit
                with suppress(ValueError):
                    yield json.loads(line.removeprefix(MARK))

    def _end(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return "its process closed its output and went on"
        self._errors.join(1)
        last = next((text for text in reversed(self._complaints) if text), "")
        return f"its process ended with code {code}" + (f": {last[:200]}" if last else "")

    def _complain(self, line: str | None) -> None:
        if line is not None:
            self._complaints.append(line.strip())
            del self._complaints[:-20]


def _thread(call: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread


def _forward(stream: IO[bytes], take: Callable[[str | None], None]) -> None:
    with suppress(OSError, ValueError):
        for line in stream:
            take(line.decode("utf-8", "replace").rstrip("\r\n"))
    take(None)
