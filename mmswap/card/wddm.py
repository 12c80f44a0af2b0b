"""What Windows allows this process of a card's memory (WDDM): budget and usage. No exception leaves this module.

    wddm = open_wddm(kind="hip", ordinal=0, name="AMD Radeon RX 7900 XT", total=total)    # None elsewhere
    wddm.memory()     # Budget(budget, usage, ...), or one sentence why it is unknown
    wddm.changed()    # ask again?

HIP on Windows counts only this process's own memory: what the desktop holds is free to it. The budget is what tells.
It is a target that Windows moves, not free memory; what follows from it is card/budget.py's.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from mmswap.card.budget import UNKNOWN
from mmswap.card.wddm_device import Device
from mmswap.card.wddm_libraries import Libraries
from mmswap.card.wddm_session import Memory, Session
from mmswap.errors import told
from mmswap.units import format_bytes

log = logging.getLogger(__name__)

SWITCH = "MMSWAP_WDDM_BUDGET"
POLL = 2.0  # seconds after which an answer is old: no event is promised for every change

Mode = Literal["default", "strict"]
T = TypeVar("T")

_ASKED: dict[str, Mode | None] = {
    **dict.fromkeys(("1", "on", "yes", "true", "default"), "default"),
    "strict": "strict",
    **dict.fromkeys(("0", "off", "no", "false"), None),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """What Windows says of this process on one adapter, in bytes.

    Attributes:
        budget: what it may use of the card's own memory before Windows takes some of it away.
        usage: what it uses of it, context and caches of the driver included.
        other_usage: what the other processes use of it, by Windows' counters; None where those are not to be had.
        shared_budget: the same as `budget`, of the system's memory; None where Windows does not say.
        shared_usage: what it uses of that for the card, pinned host memory included; None as above.
    """

    budget: int
    usage: int
    other_usage: int | None
    shared_budget: int | None
    shared_usage: int | None


def open_wddm(
    *,
    kind: Literal["hip", "cuda"],
    ordinal: int,
    name: str,
    total: int,
    pci: str | None = None,
    integrated: bool = False,
    environ: Mapping[str, str] = os.environ,
    libraries: Libraries | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Wddm | None:
    """The budget of one device, or None where none applies: off Windows, switched off, or CUDA that was not asked for.

    Args:
        kind: "hip" is on by default; "cuda" when MMSWAP_WDDM_BUDGET asks for it, as its driver counts everybody.
        ordinal: the device's number as torch gives it.
        name: its name as torch gives it.
        total: its bytes by the driver.
        pci: `bus:device.function` if torch knows it; else the runtime is asked.
        integrated: whether it is part of the processor: then no budget is used, and `memory()` says so.
        libraries: what to call instead of Windows' own libraries; given, it works on any system.
    """
    if libraries is None and sys.platform != "win32":
        return None
    text = environ.get(SWITCH, "").strip().lower()
    by_default: Mode | None = "default" if kind == "hip" else None
    if text and text not in _ASKED:
        log.warning("%s=%s is not known: use 1, strict or 0; it is taken as not set", SWITCH, text)
    mode = _ASKED.get(text, by_default)
    if mode is None:
        return None
    device = Device(kind, ordinal, name, total, pci, integrated)
    given = libraries
    return Wddm(device, mode, lambda: given or Libraries.of_system(kind), clock)


class Wddm:
    """One device's budget. Safe to use from several threads. Opens nothing before it is asked for the first time."""

    def __init__(
        self, device: Device, mode: Mode, libraries: Callable[[], Libraries], clock: Callable[[], float]
    ) -> None:
        self.mode: Mode = mode
        self._device = device
        self._libraries = libraries
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: list[Session] = []  # none or one; shared with the finalizer
        self._asked_at: float | None = None
        self._used: tuple[float, int | None] | None = None  # what everybody uses, and when that was read
        self._shared: Callable[[Session], int] | None = None  # chosen once: two sources cannot be compared
        self._finalize = weakref.finalize(self, _close_sessions, self._sessions)

    @property
    def route(self) -> str:
        """Which adapter it is and how it was found, or why it was not."""
        return self._attempt(lambda session: session.route)

    def memory(self) -> Budget | str:
        """Budget and usage, asked of Windows now; a sentence (why it is unknown) where that fails."""
        with self._lock:
            first = self._asked_at is None
            self._asked_at = self._clock()
            answer = self._attempt(self._read)
            if isinstance(answer, str):
                _close_sessions(self._sessions)  # a driver that was reset is not the one that was opened
            if first:
                self._say(answer)
            return answer

    def adapter_used(self) -> int | str:
        """Bytes of the card's own memory that all processes use together, or why that is unknown."""
        with self._lock:
            used = self._attempt(Session.adapter_used)
            self._used = self._clock(), used if isinstance(used, int) else None
            return used

    def process_shared(self) -> int | str:
        """Bytes of system memory that this process uses for the card, pinned ones included, or why that is unknown."""
        with self._lock:
            if self._shared is not None:
                return self._attempt(self._shared)
            answer = self._attempt(Session.shared_by_counter)
            self._shared = Session.shared_by_counter
            if isinstance(answer, str):
                answer = self._attempt(Session.shared_by_dxgi)
                self._shared = Session.shared_by_dxgi if isinstance(answer, int) else None
            return answer

    def changed(self) -> bool:
        """Whether `memory` should be asked again: never asked, a budget event came since, or it is 2 s ago."""
        with self._lock:
            if self._asked_at is None or self._clock() - self._asked_at >= POLL:
                return True
            return any(session.has_change() for session in self._sessions)

    def close(self) -> None:
        """Ends the watch and gives every reference back; may be called twice. Afterwards everything is unknown."""
        with self._lock:
            self._finalize()

    def _read(self, session: Session) -> Budget:
        session.forget_change()  # before the figures: a change that comes while they are read is asked for again
        found = session.memory(_left if self.mode == "strict" else _budget)
        everybody = self._everybody()
        others = None if everybody is None else max(0, everybody - found.local.usage)
        shared = (None, None) if found.shared is None else (found.shared.budget, found.shared.usage)
        return Budget(found.local.budget, found.local.usage, others, *shared)

    def _everybody(self) -> int | None:
        """What all use, at most 2 s old: counters cost more than a budget."""
        if self._used is None or self._clock() - self._used[0] >= POLL:
            self.adapter_used()
        return self._used[1] if self._used else None

    def _attempt(self, ask: Callable[[Session], T]) -> T | str:
        """What `ask` says of the session, which is opened first if there is none, or if its factory is out of date."""
        with self._lock:
            if not self._finalize.alive:
                return f"{UNKNOWN} it was closed"
            try:
                if self._sessions and not self._sessions[0].is_current():
                    _close_sessions(self._sessions)
                if not self._sessions:
                    self._sessions.append(Session(self._libraries(), self._device))
                return ask(self._sessions[0])
            except Exception as error:  # whatever a driver does: the driver's own figure has to stand
                return f"{UNKNOWN} {told(error)}"

    def _say(self, answer: Budget | str) -> None:
        if isinstance(answer, str):
            level = logging.INFO if self._device.integrated else logging.WARNING
            log.log(level, "WDDM: the budget is %s; the driver's figure stands; %s=0 turns this off", answer, SWITCH)
            return
        budget, total = format_bytes(answer.budget), format_bytes(self._device.total)
        log.info(
            "WDDM: Windows budgets %s of %s to this process on %s; %s=0 turns this off",
            *(budget, total, self.route, SWITCH),
        )


def _budget(memory: Memory) -> int:
    return memory.local.budget


def _left(memory: Memory) -> int:
    return memory.local.budget - memory.local.usage


def _close_sessions(sessions: list[Session]) -> None:
    while sessions:
        session = sessions.pop()
        try:
            session.close()
        except Exception as error:
            log.debug("closing the budget's session failed: %s", error)
