"""After filling, check again: what was sized from free bytes shrinks to what is within the budget once it is placed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from fake_cuda import FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from mmswap.card import AcceleratorCard, SimulatedCard
from mmswap.card.budget import Source, wddm_lowers
from mmswap.card.fill import fill, over_once_placed
from mmswap.card.outside import Outside

MIB = 1 << 20


def filled(card: SimulatedCard, amount: int, per_unit: int, said: list[str]) -> int:
    return fill(amount, lambda n: card.placed("KV cache", n * per_unit), card.free, per_unit, said.append)


def test_the_budget_of_the_facts_falls_as_the_card_fills() -> None:
    """15569 MiB while small, ~14540 once 11 GiB are held, of 16368 MiB: what seemed free beside 10 GiB is 1029 less."""
    card = SimulatedCard("sim:16368MiB+wddm")
    assert card.free().bytes == 15569 * MIB
    card.claim("language model", 10240 * MIB)
    assert card.free().bytes == 5329 * MIB
    said: list[str] = []
    assert filled(card, 5329, MIB, said) == 14540 - 10240
    assert said == ["only 4.2 GiB free once placed: shrinking the context from 5329 to 4300 tokens"]
    card.claim("KV cache", 4300 * MIB)
    assert (card.free().bytes, card.free().over) == (0, 0)
    card.claim("one byte", 1)
    assert card.free().over == 1


@pytest.mark.parametrize("size", ["8GiB", "20GiB", "24GiB", "999MiB"])
def test_the_fall_is_scaled_to_other_sizes(size: str) -> None:
    card = SimulatedCard(f"sim:{size}+wddm@24GB/s")
    small = card.free().bytes
    assert small == card.capacity * 15569 // 16368
    card.claim("x", card.capacity * 11264 // 16368)
    assert card.free().bytes == card.capacity * 14540 // 16368 - card.capacity * 11264 // 16368
    assert card.link_rate() == 24_000_000_000


def test_what_fits_is_left_alone_and_nothing_is_said() -> None:
    said: list[str] = []
    assert filled(SimulatedCard("sim:1000"), 1000, 1, said) == 1000
    assert said == []


@given(
    st.integers(1, 2000),
    st.integers(0, 1000),
    st.lists(st.integers(0, 1500), min_size=1, max_size=40),
    st.integers(1, 7),
)
def test_it_ends_within_the_budget_however_the_budget_moves(
    amount: int, held: int, budgets: list[int], per_unit: int
) -> None:
    """The last budget stays: with it, what is returned fits, or it is nothing at all."""
    moves = iter(budgets)
    last = budgets[-1]

    def budget(_: int) -> int:
        return next(moves, last)

    card = SimulatedCard("sim:1000", budget=budget)
    card.claim("weights", held)
    found = filled(card, amount, per_unit, [])
    assert 0 <= found <= amount
    for _ in moves:
        pass
    assert set(card.claims) == {"weights"}  # placing was only for the look
    again = filled(card, found, per_unit, [])
    assert again == 0 or held + again * per_unit <= min(1000, last)


def test_a_function_gives_the_bytes_of_so_many_and_the_smallest_is_not_undercut() -> None:
    card = SimulatedCard("sim:1000")
    size = lambda n: 100 + 3 * n  # noqa: E731
    place = lambda n: card.placed("x", size(n))  # noqa: E731
    assert fill(900, place, card.free, size, lambda _: None) == 300
    card.claim("weights", 950)
    assert fill(900, place, card.free, size, lambda _: None, smallest=16) == 16


def test_an_allocation_that_fails_shrinks_too() -> None:
    """Free bytes in pieces: the card calls 1000 free, and the largest piece is 300."""
    tries: list[int] = []

    @contextmanager
    def place(amount: int) -> Iterator[bool]:
        tries.append(amount)
        if amount > 300:
            raise torch.OutOfMemoryError("planted")
        yield True

    found = fill(1000, place, SimulatedCard("sim:1000").free, 1, lambda _: None)
    assert 250 <= found <= 300
    assert len(tries) < 30


class Falling(FakeCuda):
    """Its driver keeps a part of the card back once much of it is held."""

    def __init__(self, total: int, fall: int, above: int) -> None:
        super().__init__(total=total)
        self.placed: list[int] = []
        held = lambda: self.reserved(0)  # noqa: E731
        self.driver = lambda: (max(0, total - held() - (fall if held() >= above else 0)), total)

    def empty(self, nbytes: int, index: int) -> torch.Tensor:
        self.placed.append(nbytes)
        return super().empty(nbytes, index)


def test_a_real_card_is_asked_only_where_it_matters() -> None:
    fake = Falling(total=160 * MIB, fall=10 * MIB, above=100 * MIB)
    card = AcceleratorCard(fake, 0, outside=Outside())
    assert over_once_placed(card, "x", 20 * MIB, card.free) == 0
    assert fake.placed == []  # 140 MiB stay free with it: no budget falls that far
    assert over_once_placed(card, "x", 170 * MIB, card.free) == 10 * MIB
    assert fake.placed == []  # it cannot fit, so nothing is made to spill
    over_once_placed(card, "x", 159 * MIB, card.free)
    assert len(fake.placed) == 1


def test_the_log_and_the_decision_are_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    card = SimulatedCard("sim:1000", budget=lambda held: 1000 if held < 900 else 800)
    with caplog.at_level(logging.INFO):
        assert filled(card, 1000, 1, said) == 800
    assert said == ["only 800 B free once placed: shrinking the context from 1000 to 800 tokens"]


def test_windows_budget_falls_on_a_real_card_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts' table in hundredths: 15569 while small, ~14540 once 11 GiB are held, of 16368; the weights take 10."""
    fake = FakeCuda(total=164 * MIB)

    def windows(_: Outside, base: Source, total: int) -> list[Source]:
        return [wddm_lowers(base, total=total, budget=(145 if fake.reserved(0) >= 112 * MIB else 156) * MIB)]

    monkeypatch.setattr(Outside, "windows", windows)
    card = AcceleratorCard(fake, 0, outside=Outside())
    weights = fake.empty(100 * MIB, 0)
    seemed = card.free().bytes // MIB
    assert seemed == 56
    said: list[str] = []
    found = fill(seemed, lambda n: card.placed("KV cache", n * MIB), card.free, MIB, said.append)
    assert found == 45
    assert said == ["only 45.0 MiB free once placed: shrinking the context from 56 to 45 tokens"]
    assert over_once_placed(card, "x", 45 * MIB, card.free) == 0
    assert over_once_placed(card, "x", 46 * MIB, card.free) > 0
    assert weights.numel() == 100 * MIB
