"""Signals at any moment of a window, the first bytecode of `__exit__` included, leave no unit behind."""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from swap_models import IDS, ToyDecoder, tight_pool

from mmswap.swap import SwapPool, interrupts

FOLDER = os.path.dirname(interrupts.__file__)


@contextlib.contextmanager
def default_sigint() -> Iterator[None]:
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


class StrikeAt:
    """Raises SIGINT at the k-th opcode that runs in `mmswap.swap`, which is as fine as Python's own delivery."""

    def __init__(self, at: int) -> None:
        self.count, self.at = 0, at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if os.path.dirname(frame.f_code.co_filename) != FOLDER:
            return None
        frame.f_trace_opcodes = True
        self.count += 1
        if self.count == self.at:
            signal.raise_signal(signal.SIGINT)
        return self


def use(pool: SwapPool, overlap: bool) -> None:
    with pool.window(layers=3, overlap=overlap):
        torch.ones(10)


@pytest.mark.parametrize("overlap", [False, True])
@torch.no_grad()
def test_sigint_at_any_opcode(overlap: bool) -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    use(pool, overlap)  # mirrors are there: fewer opcodes
    pool.settle()
    before = fingerprint(model, addresses=True)
    counter = StrikeAt(-1)
    traced(counter, pool, overlap)
    generator = random.Random(0)
    moments = sorted(generator.sample(range(1, counter.count), 120))
    struck = 0
    with default_sigint():
        for at in moments:
            strike = StrikeAt(at)
            try:
                traced(strike, pool, overlap)
            except KeyboardInterrupt:
                struck += 1
                if not overlap:
                    assert fingerprint(model, addresses=True) == before
            assert not pool.busy
            pool.settle()
            assert fingerprint(model, addresses=True) == before
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert struck > 100  # the interrupt is held back, not lost


def traced(trace: StrikeAt, pool: SwapPool, overlap: bool) -> None:
    sys.settrace(trace)
    try:
        use(pool, overlap)
    finally:
        sys.settrace(None)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timer on this system")
@torch.no_grad()
def test_keyboard_interrupt_from_a_timer_at_random_moments() -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before, logits = fingerprint(model, addresses=True), model(IDS)
    generator = random.Random(1)

    def strike(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        for index in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 3e-3))
                for _ in range(6):
                    with pool.window(layers=3):
                        if index % 2:
                            torch.randn(64, 64) @ torch.randn(64, 64)
                time.sleep(0.5)  # not pause(): the signal may be handled by another thread
            except KeyboardInterrupt:
                struck += 1
            assert fingerprint(model, addresses=True) == before
            assert not pool.busy
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert struck >= 98  # Python itself loses one that strikes in a destructor
    assert torch.equal(model(IDS), logits)


def windows_for_ever(pool: SwapPool, timer: threading.Timer) -> None:
    timer.start()
    while True:
        with pool.window(layers=2):
            pass


@torch.no_grad()
def test_interrupt_main_from_another_thread() -> None:
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before = fingerprint(model)
    generator = random.Random(2)
    with default_sigint():
        for _ in range(60):
            timer = threading.Timer(generator.uniform(1e-5, 2e-3), _thread.interrupt_main)
            with pytest.raises(KeyboardInterrupt):
                windows_for_ever(pool, timer)
            timer.join()
            assert fingerprint(model) == before
            assert not pool.busy


def test_the_users_block_is_interrupted_at_once() -> None:
    pool = tight_pool(ToyDecoder(layers=4))
    after: list[str] = []
    with default_sigint():
        with contextlib.suppress(KeyboardInterrupt), pool.window(layers=2):
            signal.raise_signal(signal.SIGINT)
            after.append("the block went on")
    assert not after


def test_the_programs_own_handlers_are_called_and_put_back() -> None:
    pool = tight_pool(ToyDecoder(layers=4))
    seen: list[int] = []

    def mine(number: int, frame: object) -> None:
        seen.append(number)

    old = signal.signal(signal.SIGINT, mine)
    try:
        with pool.window(layers=2):
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("name", ["__exit__", "_undo", "_restore", "_leave", "_open", "_evict", "bring_home", "_run"])
@torch.no_grad()
def test_sigint_at_the_first_bytecode_of(name: str) -> None:
    """Before any `try` of that function is reached; for `__exit__` nobody above could catch it."""
    model = ToyDecoder(layers=4)
    pool = tight_pool(model)
    before = fingerprint(model, addresses=True)
    struck: list[str] = []

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if not struck and frame.f_code.co_name == name and os.path.dirname(frame.f_code.co_filename) == FOLDER:
            struck.append(name)
            signal.raise_signal(signal.SIGINT)

    with default_sigint():
        sys.settrace(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                use(pool, overlap=False)
        finally:
            sys.settrace(None)
    assert struck
    assert fingerprint(model, addresses=True) == before
    assert not pool.busy
