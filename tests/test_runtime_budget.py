"""The carried model on cards whose budget falls: contexts that fit, spills that are answered, figures side by side."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import mmswap
from mmswap.card import Card, Reading, SimulatedCard
from mmswap.config import SwapConfig
from mmswap.errors import ContextOverflow, DoesNotFit, OptionError
from mmswap.placement import require_room
from mmswap.runtime import Runtime

QUESTION = "Describe the picture."


def picture(colour: str = "red") -> Image.Image:
    return Image.new("RGB", (96, 96), colour)


@pytest.fixture(scope="module")
def roomy() -> Runtime:
    return mmswap.load(card="sim:1GiB")


def card_of(runtime: Runtime) -> SimulatedCard:
    assert isinstance(runtime.card, SimulatedCard)
    return runtime.card


def weights_of(runtime: Runtime) -> int:
    return sum(card_of(runtime).claims.values())


def test_a_budget_that_falls_as_it_fills_shrinks_the_context_at_load(
    roomy: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights leave the budget whole, and with the KV cache that seemed to fit it falls."""
    size = weights_of(roomy) * 16 // 11 + (1 << 20)
    with caplog.at_level(logging.WARNING):
        runtime = mmswap.load(card=f"sim:{size}+wddm")
    (sentence,) = [said for said in runtime.decisions if "once placed" in said]
    assert "shrinking the context from" in sentence
    assert f"to {runtime.context} tokens" in sentence
    assert sentence in caplog.text
    assert runtime.context < 2048
    card = card_of(runtime)
    with card.placed("all of it", runtime.memory.size(runtime.context)):
        assert card.free().over == 0
    with card.placed("one more", runtime.memory.size(runtime.context + 1)):
        assert card.free().over > 0
    answer = runtime.chat(QUESTION, [picture()], max_new_tokens=4)
    assert answer.window.spilled_bytes == 0
    assert runtime.spill().count == 0


def test_an_answer_ends_at_the_context_that_the_card_holds_and_says_so(roomy: Runtime) -> None:
    runtime = mmswap.load(card=f"sim:{weights_of(roomy) + 600_000}")
    runtime.end_ids = frozenset()
    answer = runtime.chat("Hello", max_new_tokens=1000)
    assert runtime.limited_by_card
    assert answer.finish_reason == "length"
    assert answer.prompt_tokens + answer.completion_tokens <= runtime.context < 2048
    assert any("no room for a longer KV cache" in said for said in answer.decisions)
    with pytest.raises(DoesNotFit, match="shorter prompt") as caught:
        runtime.chat("word " * 300)
    assert caught.value.need > caught.value.free
    with pytest.raises(ContextOverflow, match="the context holds 2048"):
        runtime.chat("word " * 2100)
    card_of(runtime).capacity += 50 << 20
    with pytest.raises(ContextOverflow, match=f"the card has room for {runtime.context}"):
        runtime.chat("word " * 300)


def test_an_explicit_context_that_cannot_be_held_is_said_and_answers_end_with_length(roomy: Runtime) -> None:
    runtime = mmswap.load(card=f"sim:{weights_of(roomy) + 600_000}", context=1024)
    assert runtime.context == 1024
    assert any("--context" in said and "does not fit" in said for said in runtime.decisions)
    runtime.end_ids = frozenset()
    answer = runtime.chat("Hello", max_new_tokens=1000)
    assert answer.finish_reason == "length"
    assert answer.prompt_tokens + answer.completion_tokens < 1024
    assert any("no room for a longer KV cache" in said and "can be had" in said for said in answer.decisions)


def test_a_spill_is_said_once_answered_by_one_more_unit_and_counted(roomy: Runtime) -> None:
    runtime = mmswap.load(card=f"sim:{weights_of(roomy) + 3_000_000}")
    card = card_of(runtime)
    first = runtime.chat(QUESTION, [picture()], max_new_tokens=2)
    assert (first.window.evicted, runtime.spill().count) == ((), 0)
    card.budget = weights_of(runtime) - 1000
    assert runtime.spill().bytes == 1000
    card.budget = None
    assert runtime.spill().bytes == 0
    second = runtime.chat(QUESTION, [picture("blue")], max_new_tokens=2)
    assert len(second.window.evicted) == 1  # there was room, as the first time
    assert "because of an earlier spill" in second.window.reason
    assert len([said for said in second.decisions if "SPILL" in said]) == 1
    assert second.spill is not None
    assert (second.spill.count, second.spill.worst_bytes, second.spill.bytes) == (1, 1000, 0)
    third = runtime.chat(QUESTION, [picture("green")], max_new_tokens=2)
    assert not any("SPILL" in said for said in third.decisions)
    assert len(third.window.evicted) == 1


def test_swapping_off_counts_what_spills_and_says_what_would_help(roomy: Runtime) -> None:
    runtime = mmswap.load(card=f"sim:{weights_of(roomy) + 600_000}", mmproj_swap_layers=0)
    answer = runtime.chat(QUESTION, [picture()], max_new_tokens=2)
    assert answer.window.spilled_bytes > 0
    assert runtime.spill().count == 1
    assert any("SPILL" in said and "nothing can be evicted here" in said for said in answer.decisions)


def test_predicted_stands_beside_measured(roomy: Runtime) -> None:
    """Weights at load, the encoder at each picture that is really encoded, and everything as JSON."""
    before = len(roomy.measurements().peaks)
    answer = roomy.chat(QUESTION, [picture("yellow")], max_new_tokens=2)
    roomy.chat(QUESTION, [picture("yellow")], max_new_tokens=2)  # from the cache
    found = roomy.measurements()
    load = found.load
    assert load.weights_measured == weights_of(roomy)
    assert abs(load.weights_predicted - load.weights_measured) < load.weights_measured / 100
    assert (load.context, load.over) == (2048, 0)
    assert load.kv_bytes == roomy.memory.kv_bytes(2048)
    assert len(found.peaks) == before + 1
    peak = found.peaks[-1]
    assert peak.peak_measured <= peak.peak_predicted <= 1.5 * peak.peak_measured
    assert peak.patches == answer.images[0].patches
    told: dict[str, Any] = json.loads(json.dumps(answer.to_json()))
    assert told["load"] == load.as_dict()
    assert told["spill"]["count"] == 0
    json.dumps(found.as_dict())


def test_weights_are_predicted_in_the_dtype_that_runs_and_without_a_tower_on_the_host() -> None:
    wide = mmswap.load(card="sim:1GiB", dtype="float32").measurements().load
    assert abs(wide.weights_predicted - wide.weights_measured) < wide.weights_measured / 100
    alone = mmswap.load(card="sim:1GiB", no_mmproj_offload=True).measurements().load
    assert abs(alone.weights_predicted - alone.weights_measured) < alone.weights_measured / 100
    assert alone.weights_measured < wide.weights_measured / 2
    host = mmswap.load(card="cpu").measurements().load
    assert host.weights_predicted > 0
    assert abs(host.weights_predicted - host.weights_measured) < host.weights_measured / 100


class OverBudget(Card):
    """A real card that took the weights, and whose budget says that it should not have."""

    def __init__(self) -> None:
        self.spec, self.name, self.device = "cuda:0", "card", torch.device("cpu")

    def total(self) -> int:
        return 16 << 30

    def free(self) -> Reading:
        return Reading(0, "Windows budgets less", over=929 << 20)


def test_weights_over_the_budget_are_said_with_numbers() -> None:
    said: list[str] = []
    model = nn.Linear(1 << 15, 1 << 13, bias=False, device="meta")
    require_room(model, OverBudget(), SwapConfig(), said.append)
    (sentence,) = said
    for figure in ("1.0 GiB", "929.0 MiB over", "95.0 MiB of them fit", "--no-mmproj-offload"):
        assert figure in sentence


def test_a_simulated_card_whose_budget_cannot_hold_the_model_is_refused_with_both_numbers(roomy: Runtime) -> None:
    with pytest.raises(DoesNotFit) as caught:
        mmswap.load(card=f"sim:{weights_of(roomy)}+wddm")
    assert caught.value.need > caught.value.free > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"card": "sim:1GiB", "mmproj_swap_layers": 99}, "more than there are: 8 units"),
        ({"card": "cpu", "mmproj_swap_layers": 3}, "--mmproj-swap-layers 3 changes nothing"),
        ({"card": "sim:1GiB", "mmproj_swap_layers": 3, "no_mmproj_offload": True}, "changes nothing"),
    ],
)
def test_a_flag_that_is_clamped_or_ignored_says_so(
    options: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        runtime = mmswap.load(**options)
    assert words in caplog.text
    assert any(words in said for said in runtime.decisions)


def test_the_users_cap_counts(roomy: Runtime) -> None:
    runtime = mmswap.load(card="sim:1GiB", vram_limit=weights_of(roomy) + 600_000)
    assert runtime.limited_by_card
    assert card_of(runtime).free().bytes == 600_000


@pytest.mark.parametrize(
    ("prompt", "more", "what"),
    [
        ("hi", {"images": "photo.jpg"}, "images= is a list"),
        ("hi", {"images": Path("photo.jpg")}, "images= is a list"),
        (5, {}, "list of messages"),
        ("hi", {"temprature": 0.5}, "no option 'temprature'"),
    ],
)
def test_what_is_no_prompt_is_one_sentence(roomy: Runtime, prompt: Any, more: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        roomy.chat(prompt, **more)


def test_an_empty_prompt_is_one_sentence(roomy: Runtime) -> None:
    with pytest.raises(OptionError, match=r"^The prompt is empty: .*\.$"):
        roomy.chat("  \n")
