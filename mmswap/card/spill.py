"""Bytes of ours that the driver placed in host memory: noticed, counted, and said once. Knows no model and no plan.

    watch = SpillWatch(read);  watch.rebase()        # after our own pins
    watch.poll("after the encoder ran").bytes        # or watch.start(): every few seconds, in a daemon thread

`read` gives what the driver holds for this process in host memory (PDH's Shared Usage, amdgpu's GTT), or why it is not
known. Pinned memory is in that figure too, so the baseline moves along with our own pins.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mmswap.errors import told
from mmswap.units import MIB, format_bytes

SLACK = 16 * MIB  # bytes that a driver's own staging buffers may come and go by
EVERY = 5.0  # seconds between two looks of the thread
ANSWER = "the next window evicts one more unit"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spill:
    """What one source says of this process's bytes in host memory.

    `cause` says when they were noticed, or why the figure is unknown. `how` names the source; it is empty where there
    is none.
    """

    bytes: int
    cause: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class SpillCount:
    """Since the process began to watch: how often it spilled, the worst of it, what there is now, and who says so."""

    count: int
    worst_bytes: int
    bytes: int
    cause: str
    how: str


class SpillWatch:
    """See the module. Safe to use from several threads.

    Args:
        read: bytes of this process in host memory now, pinned ones included; or one sentence why that is unknown.
        how: the name of that source; empty where nothing can be read, and only `note` counts.
        pinned: bytes that this process has pinned itself.
        slack: growth up to here is no spill.
        base: what is no spill; None takes what the first look finds.
        alone: whether the figure can move while nothing of ours runs, so that `start` is worth a thread.
        answer: what is done about it, the end of the sentence that is said; may be replaced at any time.
    """

    def __init__(
        self,
        read: Callable[[], int | str],
        *,
        how: str = "",
        pinned: Callable[[], int] = lambda: 0,
        slack: int = SLACK,
        base: int | None = None,
        alone: bool = True,
        answer: str = ANSWER,
    ) -> None:
        self.how = how
        self.answer = answer
        self._read = read
        self._pinned = pinned
        self._slack = slack
        self._alone = alone
        self._lock = threading.RLock()
        self._base = base
        self._last = base or 0
        self._pins = 0
        self._known = 0  # bytes that were said already: an episode lasts until they are back
        self._count = self._worst = self._now = self._unanswered = 0
        self._cause = ""
        self._news: list[str] = []
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)

    @property
    def reads(self) -> bool:
        """Whether there is a source to be polled."""
        return bool(self.how)

    def rebase(self) -> None:
        """What lies in host memory now is ours by intent: to be called once our own pins are made."""
        with self._lock:
            raw = self._raw()
            self._pins = self._pinned()
            self._base = None if isinstance(raw, str) else raw
            self._last = self._base or 0
            self._known = self._now = 0

    def poll(self, when: str = "between prompts") -> Spill:
        """Look now. `when` ends "noticed ..." in what is said. What rose by our own pins since then is none."""
        with self._lock:
            raw = self._raw()
            if isinstance(raw, str):
                return Spill(0, raw, self.how)
            if self._base is None:
                self.rebase()
                return Spill(0, "", self.how)
            self._follow(raw)
            over = raw - self._base
            self._now = over if over > self._slack else 0
            if self._now > self._known + self._slack or (self._now and not self._known):
                self._spilled(self._now, f"noticed {when}", f" ({self.how})")
                self._known = self._now
            elif self._known and not self._now:
                self._tell(f"What was spilled is back on the card ({self.how}).")
                self._known = 0
            return Spill(self._now, self._cause if self._now else "", self.how)

    @contextmanager
    def pinning(self) -> Iterator[None]:
        """Around our own pinning: what the figure rises by meanwhile, up to what was pinned, is no spill."""
        with self._lock:  # nobody looks between a pin and its being counted
            self._settle()
            try:
                yield
            finally:
                self._settle()

    def note(self, nbytes: int, cause: str, answer: str | None = None) -> None:
        """Count a spill that somebody measured (a simulated card's window); 0 bytes are none."""
        if nbytes > 0:
            with self._lock:
                self._spilled(nbytes, cause, "", answer)

    def count(self) -> SpillCount:
        """The figures so far; nothing is read."""
        with self._lock:
            return SpillCount(self._count, self._worst, self._now, self._cause, self.how)

    def unanswered(self) -> int:
        """How many spills there were since this was last asked: who asks, answers them."""
        with self._lock:
            found, self._unanswered = self._unanswered, 0
            return found

    def news(self) -> list[str]:
        """The sentences since this was last asked."""
        with self._lock:
            found, self._news = self._news, []
            return found

    def start(self, every: float = EVERY) -> None:
        """Poll in a daemon thread until `close`, or until nobody holds the watch any more."""
        if self.reads and self._alone:
            watch = weakref.ref(self)
            threading.Thread(target=_look, args=(watch, self._stop, every), name="mmswap-spill", daemon=True).start()

    def close(self) -> None:
        """End the thread. The figures stay."""
        self._stop.set()

    def _raw(self) -> int | str:
        try:
            return self._read()
        except Exception as error:
            return f"unknown, because reading it failed: {told(error)}"

    def _settle(self) -> None:
        raw = self._raw()
        if self._base is not None and not isinstance(raw, str):
            self._follow(raw, falls=False)

    def _follow(self, raw: int, falls: bool = True) -> None:
        """Moves the baseline: down with the figure, and up by what we pinned since, if the figure rose along."""
        assert self._base is not None
        pins = self._pinned()
        self._base += max(0, min(raw - self._last, pins - self._pins))
        if falls:
            self._base = min(self._base, raw)
        self._last, self._pins = raw, pins

    def _spilled(self, nbytes: int, cause: str, source: str, answer: str | None = None) -> None:
        self._count += 1
        self._unanswered += 1
        self._worst = max(self._worst, nbytes)
        self._cause = cause
        found = f"SPILL: {format_bytes(nbytes)} of this process lie in host memory{source}, {cause}"
        self._tell(f"{found}; {answer or self.answer}.")

    def _tell(self, sentence: str) -> None:
        self._news.append(sentence)
        del self._news[:-16]  # nobody may ever ask
        log.warning(sentence)


def _look(watch: weakref.ref[SpillWatch], stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        held = watch()
        if held is None:
            return
        held.poll()
        del held
