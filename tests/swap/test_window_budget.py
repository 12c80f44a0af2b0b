"""Budgets that move: before a window, while it opens, as the card fills, while the encoder runs, and after it."""

from __future__ import annotations

import contextlib
import gc
import logging
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from hypothesis import given, settings
from hypothesis import strategies as st
from swap_models import IDS, ToyDecoder, named_layers, tight_pool

from mmswap.card import SimulatedCard
from mmswap.errors import DoesNotFit
from mmswap.swap import SwapPool
from mmswap.swap.caution import CALM
from mmswap.swap.window import State

ROOM = 64 * 1024


def pool_with(model: ToyDecoder, room: int = ROOM) -> tuple[SwapPool, SimulatedCard, int]:
    """A pool on a card with `room` bytes beside it, its card, and the bytes of a unit."""
    pool = tight_pool(model, room=room)
    assert isinstance(pool.card, SimulatedCard)
    return pool, pool.card, pool.ladder[0].nbytes


def encode(nbytes: int) -> None:
    """Takes bytes as an encoder does, in pieces: one tensor cannot lie half in lent bytes and half beside them."""
    pieces = [torch.zeros(512, dtype=torch.uint8) for _ in range(nbytes // 512 - 2)]
    del pieces


def falling_after(card: SimulatedCard, readings: int, to: int) -> None:
    """The whole card for so many readings, and `to` bytes less from then on."""
    left = readings

    def budget(_: int) -> int:
        nonlocal left
        left -= 1
        return card.capacity - (to if left < 0 else 0)

    card.budget = budget


@pytest.mark.parametrize("readings", [2, 3, 4])
@torch.no_grad()
def test_a_budget_that_falls_while_the_window_opens_means_more_units(readings: int) -> None:
    model = ToyDecoder()
    pool, card, unit = pool_with(model)
    before = fingerprint(model, addresses=True)
    falling_after(card, readings, to=ROOM)  # all that was free: the first unit does not cover it any more
    with pool.window(need=ROOM + unit, margin=0.0) as window:
        assert sum(u.missing for u in pool.units) == len(window.plan.evict)
        encode(ROOM + unit)
    report = window.report
    assert len(report.evicted) == -(-(ROOM + unit) // unit) > 1
    assert report.spilled_bytes == card.free().over == 0
    assert "free once placed: evicting" in report.reason
    assert "more than the 1 planned" in report.reason
    assert fingerprint(model, addresses=True) == before


@torch.no_grad()
def test_a_budget_that_falls_as_the_encoder_fills_the_card() -> None:
    """facts.md: free while there is little, gone once it is taken. Placed to see, so nothing spills."""
    model = ToyDecoder()
    pool, card, unit = pool_with(model, room=4 * ROOM)
    full = card.capacity - 2 * ROOM
    card.budget = lambda held: card.capacity if held <= full else full
    need = 4 * ROOM
    assert pool.free().bytes == need  # it seems to fit
    with pool.window(need=need, margin=0.0) as window:
        encode(need)
    report = window.report
    assert len(report.evicted) == -(-2 * ROOM // unit)
    assert report.spilled_bytes == 0
    assert pool.watch.count().count == 0
    assert report.reason.startswith("Only 128.0 KiB free once placed: evicting")


@torch.no_grad()
def test_a_budget_that_falls_below_everything_is_an_error_and_everything_is_back() -> None:
    model = ToyDecoder()
    pool, card, _ = pool_with(model)
    before, logits = fingerprint(model, addresses=True), model(IDS)
    falling_after(card, 2, to=card.capacity)
    with pytest.raises(DoesNotFit) as caught, pool.window(need=ROOM + 1, margin=0.0) as window:
        pytest.fail("the encoder must not run")
    assert caught.value.need == ROOM + 1
    assert caught.value.free < caught.value.need
    assert fingerprint(model, addresses=True) == before
    assert not pool.busy
    card.budget = None
    with pool.window(need=ROOM + 1, margin=0.0) as window:
        pass
    assert window.state is State.CLOSED
    assert torch.equal(model(IDS), logits)


@torch.no_grad()
def test_what_is_over_before_the_window_is_paid_by_the_lent_bytes() -> None:
    pool, card, unit = pool_with(ToyDecoder())
    card.budget = card.capacity - ROOM - 1000  # the weights themselves are 1000 bytes over
    with pool.window(need=unit, margin=0.0) as window:
        encode(unit)
        assert card.free().over == 0
    assert window.report.evicted == ("layers.5", "layers.4", "layers.3")  # the last one for the spill that this is
    assert window.report.deficit == unit + 1000
    assert "1000 B over its budget" in window.report.reason


@torch.no_grad()
def test_a_budget_that_falls_while_the_encoder_runs_is_counted_and_the_next_window_evicts_one_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, card, _ = pool_with(ToyDecoder())
    with caplog.at_level(logging.WARNING), pool.window(need=ROOM, margin=0.0) as window:
        used = torch.zeros(ROOM, dtype=torch.uint8)
        card.budget = card.capacity - ROOM // 2
        del used
    assert window.report.evicted == ()
    assert window.report.spilled_bytes == ROOM // 2
    assert caplog.text.count("SPILL") == 1
    assert "the next window evicts one more unit" in caplog.text
    card.budget = None
    with pool.window(need=ROOM // 2, margin=0.0) as window:  # it would fit without
        pass
    assert window.report.evicted == ("layers.5",)
    assert "1 more than it takes because of an earlier spill" in window.report.reason
    with pool.window(need=ROOM + 1, margin=0.0) as window:  # still: it is not undone in silence
        pass
    assert window.report.evicted == ("layers.5", "layers.4")


@torch.no_grad()
def test_the_surplus_ends_after_a_long_calm_and_says_so() -> None:
    pool, *_ = pool_with(ToyDecoder(layers=2))
    pool.watch.note(5, "planted")
    counts, reasons = [], []
    for _ in range(CALM + 3):
        with pool.window(need=10) as window:
            pass
        counts.append(len(window.report.evicted))
        reasons.append(window.report.reason)
    assert counts == [1] * (CALM + 1) + [0] * 2
    assert "One unit fewer than before" in reasons[CALM + 1]
    assert "One unit fewer" not in reasons[CALM + 2]
    pool.watch.note(5, "planted")
    pool.watch.note(5, "planted")
    pool.watch.note(5, "planted")
    with pool.window(need=10) as window:
        pass
    assert len(window.report.evicted) == 2  # all that there are


@torch.no_grad()
def test_weights_that_come_back_to_a_smaller_budget_are_a_spill_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, card, unit = pool_with(ToyDecoder(), room=0)
    with caplog.at_level(logging.WARNING):
        with pool.window(need=unit, margin=0.0) as window:
            card.budget = card.capacity - unit // 2
        assert window.report.spilled_bytes == unit // 2
        with pool.window(need=unit, margin=0.0) as window:
            pass
    assert window.report.spilled_bytes == unit // 2
    assert len(window.report.evicted) == 3  # one for the encoder, one for the debt, one for the spill
    assert caplog.text.count("SPILL") == 1
    assert "the weights were back" in caplog.text
    assert pool.watch.count().bytes == unit // 2


@torch.no_grad()
def test_a_number_of_units_stays_that_number_and_off_stays_off() -> None:
    pool, card, unit = pool_with(ToyDecoder())
    pool.watch.note(5, "planted")
    with pool.window(need=unit, layers=1, margin=0.0) as window:
        pass
    assert len(window.report.evicted) == 1
    falling_after(card, 3, to=card.capacity)
    with pytest.raises(DoesNotFit), pool.window(need=unit, layers=2, margin=0.0):
        pass
    readings = 0

    def budget(_: int) -> int:
        nonlocal readings
        readings += 1
        return card.capacity

    card.budget = budget
    with pool.window(need=1 << 30, layers=0) as window:
        opened = readings
    assert window.report.evicted == ()
    assert opened <= 3  # one look before it; nothing is placed


STEPS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 300), st.integers(0, 6))
@torch.no_grad()
def test_whatever_the_budget_does_as_it_fills_nothing_spills_unless_it_was_said_not_to_fit(
    steps: list[tuple[int, int]], need: int, extra: int
) -> None:
    model = ToyDecoder(layers=4)
    pool, card, _ = pool_with(model)
    before = fingerprint(model)
    card.budget = lambda held: card.capacity - sum(fall for above, fall in steps if held > above)
    pool.caution.units = extra
    try:
        with pool.window(need=need * 1024 + 1024, margin=0.0) as window:
            weights = sum(card.claims.values())
            assert weights == pool.nbytes - window.plan.lent
            encode(need * 1024)
    except DoesNotFit:
        pass
    else:
        over = card.free().over  # of the weights themselves, once they are back
        assert window.plan.shortfall or window.report.spilled_bytes <= over
    assert fingerprint(model) == before
    assert not pool.busy
    assert set(card.claims) == {"evictable units"}


def test_a_pool_is_called_evictable_units_and_a_second_one_has_a_number() -> None:
    card = SimulatedCard("sim:10MiB")
    first = SwapPool(named_layers(ToyDecoder(layers=1)), card)
    assert list(card.claims) == ["evictable units"]
    second = SwapPool(named_layers(ToyDecoder(layers=1)), card)
    assert list(card.claims) == ["evictable units", "evictable units 2"]
    del first, second
    gc.collect()
    again = SwapPool(named_layers(ToyDecoder(layers=1)), card)
    assert again.card is card
    assert list(card.claims) == ["evictable units"]


@pytest.mark.parametrize("name", ["free", "claim", "release", "placed", "link_rate", "overfull"])
@torch.no_grad()
def test_a_fault_while_the_budget_falls_leaves_nothing_behind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are given up in two goes here, with placing between them; whatever fails, everything comes back."""
    model = ToyDecoder(layers=4)
    pool, card, unit = pool_with(model)
    before = fingerprint(model, addresses=True)
    real = getattr(SimulatedCard, name)
    for at in range(1, 40):
        calls = 0

        def faulty(self: SimulatedCard, *args: Any, at: int = at) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt(f"call {at}")
            return real(self, *args)

        falling_after(card, 3, to=ROOM)
        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(SimulatedCard, name, faulty)
            with pool.window(need=ROOM + unit, margin=0.0):
                encode(ROOM)
        card.budget = None
        assert fingerprint(model, addresses=True) == before
        assert not pool.busy
        with pool.window(need=0):
            pass
        assert card.claims == {"evictable units": pool.nbytes}
        if calls < at:
            return
    pytest.fail("it is called too often for this test")
