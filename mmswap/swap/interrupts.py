"""Holds signals back while weights are on their way, so that Ctrl-C never leaves a unit behind.

Python runs a signal's handler between any two bytecodes of the main thread, also at the very first one of `__exit__`,
before any `try` is reached. While a window is open its handlers are therefore wrapped: a signal that arrives inside a
`guarded` function waits until that function delivers it; in the user's own code it acts at once, as ever.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

Handler = Callable[[int, FrameType | None], Any]
_F = TypeVar("_F", bound=Callable[..., Any])

_NAMES = ("INT", "TERM", "BREAK", "HUP", "QUIT", "ALRM", "VTALRM", "PROF", "USR1", "USR2")
_SIGNALS = tuple(getattr(signal, f"SIG{name}") for name in _NAMES if hasattr(signal, f"SIG{name}"))
_guarded: set[CodeType] = set()
_holders: set[int] = set()
_pending: list[tuple[Handler, int]] = []


def guarded(function: _F) -> _F:
    """Marks a function in which (and below which) signals wait."""
    _guarded.add(function.__code__)
    return function


class _Wrapper:
    """A handler that looks at where the signal struck before it calls the one that was there."""

    def __init__(self, inner: Handler) -> None:
        self.inner = inner

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        place = frame
        while place is not None:
            if place.f_code in _guarded:
                _pending.append((self.inner, number))
                return None
            place = place.f_back
        return self.inner(number, frame)


def hold(holder: object) -> None:
    """Wraps the handlers of the process until every holder has let go. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return
    _holders.add(id(holder))
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, (_Wrapper, signal.Handlers)):
            signal.signal(number, _Wrapper(handler))


def let_go(holder: object) -> None:
    """Puts the handlers back once nobody holds them. Doing it twice is no error."""
    _holders.discard(id(holder))
    if _holders or threading.current_thread() is not threading.main_thread():
        return
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, _Wrapper):
            signal.signal(number, handler.inner)


def waiting() -> bool:
    """Whether a signal has come that was not delivered yet."""
    return bool(_pending)


def deliver(raising: bool = True) -> None:
    """Runs the handlers of signals that came meanwhile; one of them will usually raise `KeyboardInterrupt`.

    With `raising` False (an earlier error is on its way, and it is the one to report) they are dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    while _pending:
        handler, number = _pending.pop(0)
        if raising:
            handler(number, None)
