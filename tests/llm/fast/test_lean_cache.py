"""The lean step on a cache of our own: several rows at once, room that grows, and the same step captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import families
import pytest
import torch
from torch import Tensor

from mmswap.llm.fast import open_lean
from mmswap.llm.graph import GraphStep, NotCaptured, open_graph
from mmswap.llm.kv import BLOCK, kv_kind, open_cache

KIND = kv_kind("fp32")
SEQUENCES = ((5, 9, 23, 44), (77, 12, 3, 8))


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "paligemma", "cohere2_vision", "glm4v", "qwen3_vl_moe"])
def test_rows_of_a_batch_are_what_each_is_alone(name: str) -> None:
    model = families.shared(name)
    lean = open_lean(model)
    together = lean.begin_many(open_cache(model, 16, KIND), len(SEQUENCES))
    alone = [lean.begin(open_cache(model, 16, KIND), None) for _ in SEQUENCES]
    for tokens in zip(*SEQUENCES):
        wanted = torch.stack([lean(token, state) for token, state in zip(tokens, alone)])
        torch.testing.assert_close(lean.many(tokens, together), wanted, rtol=1e-4, atol=1e-4)


def test_slots_grow_under_a_running_request() -> None:
    model = families.shared("qwen2_vl")
    lean = open_lean(model)
    small, large = (lean.begin(open_cache(model, size, KIND), None) for size in (1, 2 * BLOCK))
    for number in range(BLOCK + 2):
        token = 3 + number % 300
        given, wanted = lean(token, small), lean(token, large)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-4)
    small.settle()
    assert small.cache.tokens == BLOCK + 2
    assert BLOCK + 2 <= small.cache.capacity < 2 * BLOCK


class Card:
    """Records as a card does: replaying fills the tensor that was given out when it was recorded."""

    def __init__(self, spoil: Callable[[Tensor], None] = lambda _: None) -> None:
        self.recorded = 0
        self.spoil = spoil

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        out = run().clone()

        def replay() -> Tensor:
            out.copy_(run())
            self.spoil(out)
            return out

        return replay


def _opened(card: Card) -> tuple[Any, Any, str | None]:
    model = families.shared("qwen3_vl")
    step, why = open_graph(open_lean(model), lambda tokens: open_cache(model, tokens, KIND), card.record)
    return model, step, why


def test_a_step_is_recorded_once_for_each_place_of_its_cache() -> None:
    card = Card()
    model, step, why = _opened(card)
    assert why is None
    assert isinstance(step, GraphStep)
    before = step.captures
    state = step.begin(open_cache(model, 1, KIND), None)
    sizes = set()
    for number in range(BLOCK + 1):
        logits = step(3 + number % 300, state)
        sizes.add(state.cache.capacity)
    assert step.captures - before == len(sizes), "once at the beginning, and when the cache had grown"
    assert 1 < len(sizes) < BLOCK // 8
    eager = step.lean.begin(open_cache(model, 2 * BLOCK, KIND), None)
    for number in range(BLOCK + 1):
        wanted = step.lean(3 + number % 300, eager)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


def test_a_replay_that_differs_is_not_used() -> None:
    _, step, why = _opened(Card(spoil=lambda logits: logits.mul_(1.5)))
    assert not isinstance(step, GraphStep)
    assert why is not None
    assert why.startswith("a replayed token differs by ")


def test_a_step_that_cannot_be_recorded_runs_eagerly() -> None:
    def refuse(_: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise NotCaptured("it cannot be recorded: operation not permitted when stream is capturing")

    model = families.shared("qwen2_vl")
    lean = open_lean(model)
    step, why = open_graph(lean, lambda tokens: open_cache(model, tokens, KIND), refuse)
    assert step is lean
    assert why == "it cannot be recorded: operation not permitted when stream is capturing"


def test_layers_of_another_kind_are_not_captured() -> None:
    model = families.shared("qwen3_5")
    lean = open_lean(model)
    step, why = open_graph(lean, lambda tokens: open_cache(model, tokens, KIND), Card().record)
    assert step is lean
    assert why == "its cache is not ours alone"


def test_a_processor_has_no_graphs() -> None:
    lean = open_lean(families.shared("qwen2_vl"))
    assert open_graph(lean, lambda tokens: None) == (lean, "a processor has no graphs")
