"""The simulated card: budgets that fall, move and limit, and names that say so."""

from __future__ import annotations

import pytest

from mmswap.card import SimulatedCard, open_card
from mmswap.errors import OptionError
from mmswap.units import GIB, MIB


@pytest.mark.parametrize("spec", ["sim:16GiB+wddm", "sim:16GiB+wddm@24GB/s", "sim:16GiB@24GB/s+wddm"])
def test_the_falling_budget_has_a_name(spec: str) -> None:
    card = open_card(spec)
    assert isinstance(card, SimulatedCard)
    assert card.spec == spec
    assert card.free().bytes < card.total() == 16 << 30
    assert "budget" in card.free().reason


@pytest.mark.parametrize("spec", ["sim:1GiB+", "sim:1GiB+linux", "sim:1GiB+wddm+wddm", "sim:+wddm", "sim:1GiB+wddm@"])
def test_other_names_are_one_sentence(spec: str) -> None:
    with pytest.raises(OptionError, match=r"write for example sim:16GiB.*wddm"):
        open_card(spec)


def test_the_probe_of_the_facts() -> None:
    """Held 0 / 10240 / 11264 / 14336 / 16128 MiB; the budget within 30 MiB of the table's."""
    card = SimulatedCard("sim:16368MiB+wddm")
    for held, budget in ((0, 15569), (10240, 15569), (11264, 14515), (14336, 14543), (16128, 14538), (0, 15569)):
        card.claim("held", held * MIB)
        reading = card.free()
        assert abs(reading.bytes - reading.over - (budget - held) * MIB) <= 30 * MIB


def test_a_budget_may_be_replaced_at_any_time_and_limits_apply_to_it() -> None:
    card = SimulatedCard("sim:1000", vram_limit=700)
    assert card.free().bytes == 700
    card.budget = 600
    assert card.free().bytes == 600
    card.budget = lambda held: 5000
    assert card.free().bytes == 700
    card.claim("x", 650)
    card.budget = 0
    assert (card.free().bytes, card.free().over, card.overfull()) == (0, 650, 650)
    card.budget = -5
    assert card.free().over == 650


def test_placing_is_for_the_block_only_even_if_it_fails() -> None:
    card = SimulatedCard("sim:1000")
    with card.placed("x", 1200) as there:
        assert there
        assert card.free().over == 200
    assert card.claims == {}
    with pytest.raises(ZeroDivisionError), card.placed("x", 10):
        raise ZeroDivisionError
    assert card.claims == {}


def test_the_sentence_names_the_flag_that_bounds() -> None:
    card = SimulatedCard("sim:16GiB", vram_limit=14 * GIB)
    assert "with a --vram-limit of 14.0 GiB" in card.free().reason
    card.budget = 12 * GIB
    assert "with a budget of 12.0 GiB" in card.free().reason


def test_a_budget_that_raises_is_said_and_the_last_known_one_stands() -> None:
    card = SimulatedCard("sim:1000", budget=700)
    assert card.free().bytes == 700

    def broken(held: int) -> int:
        raise OSError("the driver is gone")

    card.budget = broken
    card.claim("x", 800)
    reading = card.free()
    assert (reading.bytes, reading.over, card.overfull()) == (0, 100, 100)
    assert reading.doubtful
    assert "could not be read (the driver is gone), so the last known one stands" in reading.reason
    card.budget = 900
    assert (card.free().bytes, card.free().doubtful) == (100, False)
    never = SimulatedCard("sim:1000", budget=broken)
    assert never.free().bytes == 1000
    assert "so the whole card counts" in never.free().reason
