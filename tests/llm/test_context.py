"""The context: what the model was made for, what the user asked for, or what the card has room for once placed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.card import HostCard, SimulatedCard
from mmswap.errors import ContextOverflow, OptionError
from mmswap.llm.context import Context, ContextBeyondCard, choose_context
from mmswap.llm.costs import PrefillCost
from mmswap.llm.division import Ahead
from mmswap.llm.memory import TextMemory

MIB = 1 << 20
KV, STEP, FIXED = 1000, 5000, 300


def memory_on(card: SimulatedCard | HostCard, kv: int = KV) -> TextMemory:
    def cost_of(step: int, tokens: int, ahead: Ahead) -> PrefillCost:
        return PrefillCost(STEP + tokens * 10, lambda held: held * kv + FIXED if kv else 0)

    return TextMemory(cost_of, card, card.free, 256)


def chosen(card: SimulatedCard, *, limit: int, wanted: int | None = None, kv: int = KV) -> tuple[Context, list[str]]:
    said: list[str] = []
    return choose_context(memory_on(card, kv), card, limit=limit, wanted=wanted, say=said.append), said


def most(room: int) -> int:
    return (room - FIXED - STEP) // (KV + 10)


def test_a_roomy_card_gives_what_the_model_was_made_for() -> None:
    context, said = chosen(SimulatedCard("sim:1GiB"), limit=2048)
    assert (context.tokens, context.by_card, context.kv_bytes) == (2048, False, 2048 * KV + FIXED)
    assert said == []


@given(st.integers(30_000, 3_000_000))
def test_a_tight_card_gives_what_it_holds_beside_one_step_and_not_a_token_less(capacity: int) -> None:
    card = SimulatedCard(f"sim:{capacity}")
    context, _ = chosen(card, limit=2048)
    assert context.tokens == min(2048, most(capacity))
    assert context.by_card == (context.tokens < 2048)
    assert "one prefill step" in context.reason or not context.by_card
    assert card.claims == {}


def test_a_budget_that_falls_once_it_is_filled_shrinks_the_context_and_says_so() -> None:
    """The facts' card: 15569 MiB while small, ~14540 once it holds 11 GiB, so 1029 MiB of KV cache are too many."""
    card = SimulatedCard("sim:16368MiB+wddm")
    card.claim("language model", 10240 * MIB)
    context, said = chosen(card, limit=131072, kv=100_000)
    seemed, is_so = 5329 * MIB, (14540 - 10240) * MIB
    before, after = (room - FIXED - STEP for room in (seemed, is_so))
    assert context.tokens == after // 100_010
    assert said == [
        f"only 4.2 GiB free once placed: shrinking the context from {before // 100_010} to {context.tokens} tokens"
    ]
    assert context.by_card
    card.claim("KV cache", context.kv_bytes + STEP + context.tokens * 10)
    assert card.free().over == 0


def test_an_explicit_context_stands_and_is_said_not_to_fit() -> None:
    card = SimulatedCard("sim:100000")
    context, said = chosen(card, limit=2048, wanted=1000)
    assert (context.tokens, context.by_card) == (1000, False)
    assert len(said) == 1
    assert "--context" in said[0]
    assert "does not fit" in said[0]
    assert f"about {most(100_000)} tokens" in said[0]
    assert chosen(card, limit=2048, wanted=50)[1] == []
    with pytest.raises(OptionError, match="above the 2048"):
        chosen(card, limit=2048, wanted=2049)


def test_an_explicit_context_that_fits_only_until_it_is_placed_is_said_too() -> None:
    card = SimulatedCard("sim:200000", budget=lambda held: 200_000 if held < 100_000 else 60_000)
    context, said = chosen(card, limit=2048, wanted=150)
    assert context.tokens == 150
    assert "does not fit" in said[0]


def test_no_room_at_all_is_said_and_loading_goes_on() -> None:
    context, said = chosen(SimulatedCard("sim:5000"), limit=2048)
    assert context.tokens == 16
    assert "no room for a text" in said[-1]


def test_a_cache_that_does_not_grow_or_is_not_known_limits_nothing() -> None:
    assert chosen(SimulatedCard("sim:5000"), limit=2048, kv=0)[0].tokens == 2048


def test_the_host_is_sized_as_well() -> None:
    host = HostCard()
    context = choose_context(memory_on(host, kv=host.total() // 100), host, limit=4096, wanted=None, say=lambda _: None)
    assert context.tokens < 100


def test_a_prompt_beyond_the_cards_context_gets_advice_that_helps() -> None:
    error = ContextBeyondCard(600, 120)
    assert isinstance(error, ContextOverflow)
    assert (error.prompt_tokens, error.context) == (600, 120)
    assert "600" in str(error)
    assert "120" in str(error)
    assert "--context" not in str(error)
