"""The window: evict, lend the bytes, restore; a transaction that ends with every weight back, whatever happens inside.

    closed -> evicting -> open -> restoring -> closed          the block ended
                     \\-> failed -> restored                    anything was raised, KeyboardInterrupt included

What is free is read when the window begins, again once the units are evicted, and again when they are back.

Made by `SwapPool.window`; knows the pool's parts, not who runs inside.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mmswap.errors import DoesNotFit, WindowMisuse
from mmswap.swap import interrupts
from mmswap.swap.arena import Usage
from mmswap.swap.plan import Need, Plan, plan
from mmswap.swap.report import WindowReport
from mmswap.swap.restore import Restoration
from mmswap.swap.turn import Turn
from mmswap.units import format_bytes

if TYPE_CHECKING:
    from mmswap.swap.pool import SwapPool

_NESTED = "A window is already open in this thread: put everything into its one `with` block."

_FELL = "the card's budget fell while its window opened; close what else uses the card, or use a smaller picture"
_TOOK = "when an image's encoder took more than the card may give"

log = logging.getLogger(__name__)


class State(Enum):
    """Where a window is in its life."""

    CLOSED = "closed"
    EVICTING = "evicting"
    OPEN = "open"
    RESTORING = "restoring"
    FAILED = "failed"
    RESTORED = "restored"


class Window:
    """What `with pool.window(...) as window` gives.

    Attributes:
        state: see the module's drawing.
        plan: what was decided, and why.
        report: what was done; its restore figures are final after `pool.settle()`.
    """

    def __init__(self, pool: SwapPool, need: Need, *, layers: int, margin: float, overlap: bool) -> None:
        self.state = State.CLOSED
        self._pool = pool
        self._need = need
        self._layers = layers
        self._margin = margin
        self._overlap = overlap
        self._plan: Plan | None = None
        self._turn: Turn | None = None
        self._usage = Usage()
        self._evicted: list[int] = []
        self._unaccounted: Usage | None = None
        self._spilled = 0
        self._restorations: list[Restoration] = []

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            raise WindowMisuse("A window has no plan before its `with` block has begun.")
        return self._plan

    @property
    def report(self) -> WindowReport:
        decided = self.plan
        timings = [restoration.timing() for restoration in self._restorations]
        return WindowReport(
            opened=bool(decided.evict),
            reason=decided.reason,
            need=decided.need,
            free=decided.free,
            deficit=decided.deficit,
            evicted=decided.evict,
            evicted_bytes=decided.lent,
            restored_bytes=sum(restoration.restored_bytes for restoration in self._restorations),
            restore_ms=sum(taken for taken, _ in timings),
            restore_hidden_ms=sum(hidden for _, hidden in timings),
            spilled_bytes=self._spilled,
            peak_measured=self._usage.peak,
        )

    def keep(self, tree: Any) -> Any:
        """Copies of all tensors in `tree` (lists, dicts, model outputs) that outlive the window, outside of lent bytes.

        Raises:
            WindowMisuse: the window is not open.
        """
        if self.state is not State.OPEN:
            raise WindowMisuse("`keep` copies out of an open window: call it inside the `with` block.")
        arena = self._pool.arena
        return arena.keep(tree) if arena is not None else tree

    def __enter__(self) -> Window:
        if self._turn is not None:
            raise WindowMisuse("A window serves one `with` block: ask the pool for a new one.")
        try:
            interrupts.hold(self)
            self._turn = Turn()
            self._pool.turns.take(self._turn, _NESTED)
            self._decide()
            self._open()
            interrupts.deliver()
            return self
        except BaseException:
            self._fail()
            interrupts.deliver(raising=False)
            raise

    @interrupts.guarded
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._fail()
            interrupts.deliver(raising=False)
            return
        errors = self._undo(behind=self._overlap)
        if interrupts.waiting():  # nothing may go on behind an interrupt
            _try(errors, lambda: errors.extend(self._pool.bring_back()))
        self._leave(State.RESTORED if errors else State.CLOSED)
        interrupts.deliver(raising=not errors)
        if errors:
            raise errors[0]

    def _decide(self) -> None:
        pool = self._pool
        self.state = State.EVICTING
        for error in pool.bring_back():
            raise error
        pool.watch.poll("before a window")
        learnt = pool.caution.look(len(pool.rungs)) if self._layers < 0 else ""
        reading = pool.free()
        decided = self._planned(reading.bytes - reading.over)
        reason = decided.reason + learnt
        if pool.arena is None:
            reason = f"Nothing is evicted on {pool.card.spec}: nothing can be lent there."
        elif decided.shortfall:
            log.warning(reason)
        self._plan = replace(decided, reason=reason)

    def _planned(self, free: int) -> Plan:
        """The plan for `free` bytes; below 0 where the card is over its budget."""
        return plan(
            self._need,
            max(0, free),
            self._pool.rungs,
            layers=self._layers,
            margin=self._margin,
            link_rate=self._pool.card.link_rate(),
            debt=max(0, -free),
            extra=self._pool.caution.units,
        )

    @interrupts.guarded
    def _open(self) -> None:
        pool = self._pool
        if pool.arena is not None:
            self._evict(0)
            self._check_again()
            pool.arena.lend(self.plan.lent)
        self.state = State.OPEN

    def _check_again(self) -> None:
        """Reads what is free with the encoder's bytes placed, and evicts more while the budget falls.

        Raises:
            DoesNotFit: it fell below what evicting everything makes room for.
        """
        pool, first = self._pool, len(self.plan.evict)
        if self._layers == 0 or self.plan.shortfall:
            return  # off, or known and said before
        while True:
            room = pool.room(self.plan.lent, self.plan.outside)
            now, planned = self._planned(room), len(self.plan.evict)
            if now.shortfall:
                raise DoesNotFit("The encoder", now.need, max(0, now.need - now.shortfall), _FELL)
            if len(now.evict) <= planned:
                return
            more = len(now.evict) - first
            fell = (
                f"Only {format_bytes(max(0, room))} free once placed: evicting {more} more than the {first} planned. "
            )
            self._plan = replace(now, reason=fell + now.reason)
            log.info(self._plan.reason)
            self._evict(planned)

    def _evict(self, first: int) -> None:
        """Gives up the units of the plan from the one at `first` on."""
        pool = self._pool
        assert pool.arena is not None
        units = list(enumerate(pool.ladder[: len(self.plan.evict)]))[first:]
        if not units:
            return
        with pool.watch.pinning():  # every mirror before any eviction: a failure here costs nothing
            for index, unit in units:
                pool.mirrors.ensure(unit, pool.arena.slabs[index])
        pool.arena.begin()
        for index, unit in units:
            self._evicted.append(index)
            unit.missing = True  # before it is true, so that whatever happens next is undone
            if pool.arena.unbinds:
                unit.unbind()
            pool.arena.evict(index)
        pool.book(self.plan.lent)

    @interrupts.guarded
    def _fail(self) -> None:
        """Undoes everything now. Nothing it meets is raised: the error that led here is the one to report."""
        self.state = State.FAILED
        self._undo(behind=False)
        self._leave(State.RESTORED)

    def _undo(self, *, behind: bool) -> list[BaseException]:
        try:
            return self._restore(behind=behind)
        except BaseException as error:  # every step guards itself; this is for what strikes between two steps
            return [error, *self._restore(behind=False)]

    def _restore(self, *, behind: bool) -> list[BaseException]:
        """Ends the lending and brings every missing unit back. Can be called again after anything."""
        errors: list[BaseException] = []
        pool = self._pool
        if pool.arena is None or not pool.turns.has(self._turn):
            return errors
        _try(errors, self._end_lending)
        if errors:  # what struck may have struck before anything was ended
            _try(errors, self._end_lending)
        _try(errors, self._account)
        if not self._evicted:
            return errors
        if self.state is State.OPEN:
            self.state = State.RESTORING
        _try(errors, lambda: errors.extend(pool.bring_home()))
        _try(errors, lambda: pool.book(0))
        _try(errors, lambda: self._start(errors, behind and not errors))
        if errors and any(pool.ladder[index].missing for index in self._evicted):
            _try(errors, lambda: self._start(errors, False))
        _try(errors, lambda: self._count(self._pool.over()))
        return errors

    def _count(self, spilled: int) -> None:
        self._spilled = max(self._spilled, spilled)

    def _start(self, errors: list[BaseException], behind: bool) -> None:
        pool = self._pool
        assert pool.copier is not None
        if pool.restoration is not None:  # an earlier attempt of this window, which left something missing
            pool.restoration.settle()
        restoration = pool.restoration = Restoration(pool.jobs(), pool.copier)
        self._restorations.append(restoration)
        restoration.start(behind=behind)
        if not behind:
            errors += pool.bring_back()
        elif not restoration.threaded:
            errors += restoration.drain()

    def _end_lending(self) -> None:
        usage = self._pool.arena.end_lending() if self._pool.arena is not None else None
        if usage is not None:
            self._usage = self._unaccounted = usage
        if self._turn is not None and self._turn.owner != threading.get_ident():
            raise WindowMisuse("A window must be left by the thread that entered it; its weights are back.")

    def _account(self) -> None:
        """What the encoder took beyond what the card may give, by the budget as it is now."""
        usage, self._unaccounted = self._unaccounted, None
        if usage is not None and self._layers == 0:
            self._spilled = usage.beyond(0, self.plan.free)
        elif usage is not None:
            self._spilled = usage.beyond(self.plan.lent, self._pool.room(self.plan.lent, usage.growth))
            self._pool.watch.note(self._spilled, _TOOK)

    def _leave(self, state: State) -> None:
        self.state = state
        self._pool.turns.give_back(self._turn)
        interrupts.let_go(self)


def _try(errors: list[BaseException], step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException as error:
        errors.append(error)
