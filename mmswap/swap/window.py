"""The window: evict, lend the bytes, restore; a transaction that ends with every weight back, whatever happens inside.

    closed -> evicting -> open -> restoring -> closed          the block ended
                     \\-> failed -> restored                    anything was raised, KeyboardInterrupt included

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

from mmswap.errors import WindowMisuse
from mmswap.swap import interrupts
from mmswap.swap.arena import Usage
from mmswap.swap.plan import Need, Plan, plan
from mmswap.swap.report import WindowReport
from mmswap.swap.restore import Restoration
from mmswap.swap.turn import Turn
from mmswap.swap.unit import Unit

if TYPE_CHECKING:
    from mmswap.swap.pool import SwapPool

_NESTED = "A window is already open in this thread: put everything into its one `with` block."

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
            spilled_bytes=max(0, self._usage.growth - decided.free),
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
        free = pool.free().bytes
        self._plan = plan(
            self._need,
            free,
            pool.rungs,
            layers=self._layers,
            margin=self._margin,
            link_rate=pool.card.link_rate(),
        )
        if self._plan.shortfall and pool.arena is not None:
            log.warning(self._plan.reason)
        if pool.arena is None:
            self._plan = replace(
                self._plan, reason=f"Nothing is evicted on {pool.card.spec}: nothing can be lent there."
            )

    @interrupts.guarded
    def _open(self) -> None:
        pool = self._pool
        if pool.arena is not None:
            self._evict(pool.ladder[: len(self.plan.evict)])
            pool.arena.lend(self.plan.lent)
        self.state = State.OPEN

    def _evict(self, units: tuple[Unit, ...]) -> None:
        pool = self._pool
        assert pool.arena is not None
        for index, unit in enumerate(units):  # every mirror before any eviction: a failure here costs nothing
            pool.mirrors.ensure(unit, pool.arena.slabs[index])
        if units:
            pool.arena.begin()
        for index, unit in enumerate(units):
            self._evicted.append(index)
            unit.missing = True  # before it is true, so that whatever happens next is undone
            if pool.arena.unbinds:
                unit.unbind()
            pool.arena.evict(index)
        if units:
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
        if not self._evicted:
            return errors
        if self.state is State.OPEN:
            self.state = State.RESTORING
        _try(errors, lambda: errors.extend(pool.bring_home()))
        _try(errors, lambda: pool.book(0))
        _try(errors, lambda: self._start(errors, behind and not errors))
        if errors and any(pool.ladder[index].missing for index in self._evicted):
            _try(errors, lambda: self._start(errors, False))
        return errors

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
            self._usage = usage
        if self._turn is not None and self._turn.owner != threading.get_ident():
            raise WindowMisuse("A window must be left by the thread that entered it; its weights are back.")

    def _leave(self, state: State) -> None:
        self.state = state
        self._pool.turns.give_back(self._turn)
        interrupts.let_go(self)


def _try(errors: list[BaseException], step: Callable[[], object]) -> None:
    try:
        step()
    except BaseException as error:
        errors.append(error)
