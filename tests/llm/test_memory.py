"""Text memory: the largest step that fits, a claim that grows with the answer, an end instead of a spill."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.card import SimulatedCard
from mmswap.errors import DoesNotFit
from mmswap.llm.costs import PrefillCost, between_powers
from mmswap.llm.division import Ahead
from mmswap.llm.kv.kinds import blocks
from mmswap.llm.memory import TextMemory


def memory(capacity: int, peak_per_token: int = 100, kv_per_token: int = 10, chunk: int = 256) -> TextMemory:
    card = SimulatedCard(f"sim:{capacity}")

    def cost_of(step: int, tokens: int, ahead: Ahead) -> PrefillCost:
        return PrefillCost(step * peak_per_token, lambda tokens: tokens * kv_per_token)

    made = TextMemory(cost_of, card, card.free, chunk)
    made.card = card  # type: ignore[attr-defined]
    return made


def test_the_largest_step_that_fits_is_taken() -> None:
    said: list[str] = []
    assert memory(100_000).begin(100, 0, said.append) == 128
    assert memory(64 * 100 + 1000).begin(100, 0, said.append) == 64
    assert memory(16 * 100 + 1000).begin(100, 0, said.append) == 16
    assert "Prefill of 100 tokens in steps of 16" in said[-1]


def test_less_than_the_smallest_step_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFit) as caught:
        memory(16 * 100 + 999).begin(100, 0, lambda _: None)
    assert (caught.value.need, caught.value.free) == (2600, 2599)


@given(st.integers(1, 400), st.integers(20_000, 60_000))
def test_growing_never_claims_more_than_there_is(tokens: int, capacity: int) -> None:
    made = memory(capacity)
    made.begin(tokens, 0, lambda _: None)
    count = tokens
    while made.grow(count):
        assert sum(made.card.claims.values()) <= capacity  # type: ignore[attr-defined]
        count += 1
        if count > 10_000:
            pytest.fail("the card never fills")
    assert count * 10 + 16 * 100 > capacity  # the next step has its room too
    made.release()
    assert made.card.claims == {}  # type: ignore[attr-defined]


def test_claims_come_in_blocks_where_there_is_room() -> None:
    made = memory(100_000)
    made.begin(10, 0, lambda _: None)
    assert made.grow(10)
    assert made.card.claims["KV cache"] == blocks(10) * 10  # type: ignore[attr-defined]


@given(st.integers(1, 3000))
def test_a_cost_between_powers_is_never_below_the_curve_and_asks_for_powers_only(size: int) -> None:
    asked: list[int] = []

    def cost(tokens: int) -> int:
        asked.append(tokens)
        return 1000 + 7 * tokens + tokens * tokens // 50

    got = between_powers(size, cost)
    assert cost(size) <= got + 1
    assert got <= 1.25 * cost(max(64, size + 63))
    del asked[-2:]
    assert all(tokens & (tokens - 1) == 0 and tokens >= 16 for tokens in asked)


def falling(capacity: int, above: int, to: int) -> TextMemory:
    made = memory(capacity)
    made.card.budget = lambda held: capacity if held <= above else to  # type: ignore[attr-defined]
    return made


def test_a_budget_that_falls_once_the_prompt_is_placed_halves_the_step() -> None:
    """Free is 20000 while little is held: 128 x 100 + 1000 seem to fit, and with more than 10000 the budget is 8000."""
    made = falling(20_000, above=10_000, to=8_000)
    said: list[str] = []
    assert made.begin(100, 0, said.append) == 64
    assert said[0] == "only 7.8 KiB free once placed: shrinking the prefill step from 128 to 64 tokens"
    assert made.card.claims == {}  # type: ignore[attr-defined]


def test_a_budget_that_falls_with_every_step_placed_is_refused_with_what_can_be_had() -> None:
    made = falling(20_000, above=2_000, to=1_500)
    with pytest.raises(DoesNotFit) as caught:
        made.begin(100, 0, lambda _: None)
    assert (caught.value.need, caught.value.free) == (2600, 1500)


def test_an_answer_ends_where_the_budget_falls_as_the_cache_grows() -> None:
    made = falling(20_000, above=6_000, to=6_000)
    made.begin(100, 0, lambda _: None)
    count = 100
    while made.grow(count):
        assert made._free().over == 0
        count += 1
    assert count * 10 + 1600 > 6_000
    assert made.card.claims["KV cache"] <= 6_000 - 1600  # type: ignore[attr-defined]
    assert made.refusal.startswith("the next step needs")


def test_an_answer_ends_at_its_block_when_others_take_the_card() -> None:
    made = memory(100_000)
    made.begin(100, 0, lambda _: None)
    assert made.grow(100)
    made.card.budget = 500  # type: ignore[attr-defined]
    assert made.grow(blocks(100))  # claimed before
    assert not made.grow(blocks(100) + 1)
    assert "0 B can be had" in made.refusal


def test_the_figures_of_a_sentence_differ_where_they_differ() -> None:
    """Not 'needs 1.3 MiB and 1.3 MiB are free'."""
    said: list[str] = []
    memory(2_600 + 5).begin(100, 0, said.append)
    need, cache, free = re.findall(r"[\d.]+ [KMGi]*B", said[0])
    assert len({need, cache, free}) == 3


def test_a_budget_that_falls_while_pictures_are_encoded_takes_smaller_steps_or_refuses() -> None:
    """Between `begin` and `start` the encoder ran: what was free then is no longer."""
    made = memory(20_000)
    card: SimulatedCard = made.card  # type: ignore[attr-defined]
    said: list[str] = []
    chunk = made.begin(100, 500, said.append)
    assert chunk == 128
    card.budget = 5_000
    assert made.start(100, 500, chunk, said.append) == 32
    assert said[-1] == "The prefill takes steps of 32 tokens instead of 128: only 4.4 KiB are free by now."
    assert card.claims == {"image features": 500, "KV cache": 1000}
    made.release()
    assert made.begin(100, 500, said.append) == 32
    card.budget = 3_000
    with pytest.raises(DoesNotFit) as caught:
        made.start(100, 500, 32, said.append)
    assert (caught.value.need, caught.value.free) == (2600, 2500)
    assert "KV cache" not in card.claims
    made.release()
    assert card.claims == {}


def test_a_prompt_is_claimed_where_it_starts_whatever_the_next_reading_says() -> None:
    """Two readings of one moment may differ: a prompt that was found to fit must not go on without its claim."""
    made = memory(20_000)
    card: SimulatedCard = made.card  # type: ignore[attr-defined]
    chunk = made.begin(100, 0, lambda _: None)
    figures = iter([20_000])
    card.budget = lambda held: next(figures, 0)
    made.start(100, 0, chunk, lambda _: None)
    assert card.claims["KV cache"] == 1000
    assert not made.grow(101)
