"""Faults at every step of a window: afterwards every byte is as before, the lock free, and the first error raised."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from swap_models import IDS, ToyDecoder, tight_pool
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mmswap.card import SimulatedCard
from mmswap.swap import SwapPool, arena, mirror, restore, window
from mmswap.swap import pool as pool_module
from mmswap.swap.arena import SimulatedArena
from mmswap.swap.copier import HostCopier
from mmswap.swap.mirror import Mirrors
from mmswap.swap.tracker import LiveTracker
from mmswap.swap.unit import Unit

ERRORS = [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit]

STEPS: list[tuple[Any, str]] = [
    (SimulatedCard, "free"),
    (SimulatedCard, "claim"),
    (SimulatedCard, "link_rate"),
    (Mirrors, "ensure"),
    (mirror, "pageable"),
    (Unit, "check"),
    (Unit, "versions"),
    (SimulatedArena, "scratch"),
    (SimulatedArena, "begin"),
    (SimulatedArena, "evict"),
    (SimulatedArena, "lend"),
    (SimulatedArena, "end_lending"),
    (SimulatedArena, "retake"),
    (LiveTracker, "__enter__"),
    (LiveTracker, "__exit__"),
    (arena, "growth"),
    (window, "plan"),
    (window, "Restoration"),
    (restore.Restoration, "start"),
    (restore.Restoration, "settle"),
    (restore.Restoration, "drain"),
    (pool_module, "Job"),
    (SwapPool, "jobs"),
    (SwapPool, "book"),
    (SwapPool, "bring_home"),
    (SwapPool, "bring_back"),
    (HostCopier, "begin"),
    (HostCopier, "copy"),
    (HostCopier, "wait"),
    (HostCopier, "finish"),
    (torch.Tensor, "copy_"),
    (torch.Tensor, "fill_"),
]


class Fault:
    """Replaces `owner.name` by a function that raises at its k-th call, before or after the real thing."""

    def __init__(self, owner: Any, name: str, at: int, error: BaseException, *, after: bool = False) -> None:
        self.calls, self.fired = 0, False
        self.owner, self.name, self.at, self.error, self.after = owner, name, at, error, after

    @contextlib.contextmanager
    def installed(self) -> Iterator[Fault]:
        own = self.name in vars(self.owner)
        real = getattr(self.owner, self.name)

        def faulty(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            strike = self.calls == self.at
            if strike and not self.after:
                self.fired = True
                raise self.error
            result = real(*args, **kwargs)
            if strike:
                self.fired = True
                raise self.error
            return result

        setattr(self.owner, self.name, faulty)
        try:
            yield self
        finally:
            if own:
                setattr(self.owner, self.name, real)
            else:
                delattr(self.owner, self.name)


@torch.no_grad()
def outcome(swap: SwapPool, model: ToyDecoder, overlap: bool) -> BaseException | None:
    """One window, the forward after it, and `settle`: what is raised first."""
    first: BaseException | None = None
    for part in (lambda: use(swap, overlap), lambda: model(IDS), swap.settle):
        try:
            part()
        except BaseException as error:
            first = first or error
    return first


def use(swap: SwapPool, overlap: bool) -> None:
    with swap.window(layers=2, overlap=overlap):
        torch.ones(100) + 1


@pytest.mark.parametrize("overlap", [False, True], ids=["now", "behind"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[f"{owner.__name__.split('.')[-1]}.{name}" for owner, name in STEPS])
def test_a_fault_at_any_call_of_any_step(step: tuple[Any, str], after: bool, overlap: bool) -> None:
    model = ToyDecoder(layers=3)
    pool = tight_pool(model)
    before = fingerprint(model, addresses=True)
    for at in range(1, 30):
        error = ERRORS[at % len(ERRORS)](f"call {at}")
        with Fault(*step, at, error, after=after).installed() as fault:
            raised = outcome(pool, model, overlap)
        assert fingerprint(model, addresses=True) == before
        assert not pool.busy
        assert not any(unit.missing for unit in pool.units)
        assert not _get_current_dispatch_mode_stack(), "the window's tracker sees what comes after it"
        assert outcome(pool, model, False) is None  # the next window knows nothing of it
        assert pool.card.free().bytes == 0
        pool.mirrors.clear()
        if not fault.fired:
            assert raised is None
            assert at > 1, "the step was never reached"
            return
        assert raised is error
    pytest.fail("the step is called too often for this test")


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_in_the_block_wins_over_those_of_the_clean_up(kind: type[BaseException], overlap: bool) -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before = fingerprint(model)
    for name in ("copy", "begin", "finish"):
        first = kind("in the block")
        with Fault(HostCopier, name, 1, RuntimeError("later")).installed() as fault:
            with pytest.raises(kind) as caught, pool.window(layers=2, overlap=overlap):
                raise first
        assert fault.fired
        assert caught.value is first
        assert fingerprint(model) == before  # at once: nothing goes on behind an error
        assert not pool.busy
        pool.settle()


def test_a_generator_that_its_consumer_closes_inside_the_window() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    before = fingerprint(model)

    def answer() -> Iterator[int]:
        with pool.window(layers=4, overlap=True):
            yield 1
            yield 2

    stream = answer()
    assert next(stream) == 1
    assert pool.busy
    stream.close()
    assert fingerprint(model) == before
    assert not pool.busy
    stream = answer()
    next(stream)
    del stream  # dropped, not closed
    assert fingerprint(model) == before
    assert not pool.busy


def test_both_ways_of_copying_fail_and_the_unit_comes_back_later() -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before, logits = fingerprint(model), model(IDS)
    error = RuntimeError("the link is down")

    def broken(*_: object) -> None:
        raise error

    real = HostCopier.copy, HostCopier.copy_plainly
    HostCopier.copy = HostCopier.copy_plainly = broken  # type: ignore[method-assign]
    try:
        with pytest.raises(RuntimeError) as caught, pool.window(layers=2):
            pass
    finally:
        HostCopier.copy, HostCopier.copy_plainly = real  # type: ignore[method-assign]
    assert caught.value is error
    assert not pool.busy
    assert sum(unit.missing for unit in pool.units) == 2
    pool.settle()
    assert fingerprint(model) == before
    assert torch.equal(model(IDS), logits)


def test_no_thread_to_be_had() -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before = fingerprint(model)
    with Fault(threading.Thread, "start", 1, RuntimeError("can't start new thread")).installed() as fault:
        with pool.window(layers=2, overlap=True) as opened:
            pass
    assert fault.fired
    pool.settle()
    assert fingerprint(model) == before
    assert opened.report.restored_bytes == opened.report.evicted_bytes


def test_the_users_own_need_function_may_fail() -> None:
    pool = tight_pool(ToyDecoder(layers=4))

    def need(lent: int) -> int:
        raise ZeroDivisionError("dry run")

    with pytest.raises(ZeroDivisionError), pool.window(need=need):
        pass
    assert not pool.busy


def test_the_waiting_thread_gets_its_turn_after_a_failure() -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before = fingerprint(model)
    done: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def failing() -> None:
        with contextlib.suppress(ValueError), pool.window(layers=2):
            entered.set()
            leave.wait()
            raise ValueError

    def waiting() -> None:
        with pool.window(layers=2):
            done.append("second")

    run: Callable[[Callable[[], None]], threading.Thread] = lambda f: threading.Thread(target=f)  # noqa: E731
    one, two = run(failing), run(waiting)
    one.start()
    entered.wait()
    two.start()
    leave.set()
    one.join()
    two.join()
    assert done == ["second"]
    assert fingerprint(model) == before
