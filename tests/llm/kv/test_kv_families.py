"""Whole models on caches of ours: equal to transformers' own where nothing is rounded, near it where something is."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import families
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from mmswap.errors import ModelError, OptionError
from mmswap.llm.kv import open_cache
from mmswap.llm.kv.caching import decide
from mmswap.llm.kv.kinds import KINDS, kv_kind
from mmswap.llm.kv.measuring import Prompted, measure
from mmswap.llm.kv.opening import offsets_cancel, own_layers, refuse, unusual
from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import cache_argument

# full, hybrid, sliding, shared keys, cross attention, convolution, experts, head sizes that differ by layer (gemma4)
VARIED = ["qwen2_vl", "qwen3_5", "gemma3", "gemma4", "mllama", "lfm2_vl", "qwen3_vl_moe", "aya_vision"]
QUANTISED = [name for name, kind in KINDS.items() if kind.quantised]


@torch.no_grad()
def read(model: Any, cache: Any, inputs: dict[str, Tensor], steps: int = 3) -> Tensor:
    """Logits [1 + steps, V] behind the prompt and behind each of some tokens that follow it."""
    out = model(**inputs, **cache_argument(model, cache), use_cache=True)
    logits = [out.logits[0, -1]]
    for step in range(steps):
        token = torch.tensor([[50 + step]])
        given: dict[str, Any] = {"input_ids": token}
        if "cross_attention_mask" in inputs:
            given["cross_attention_mask"] = inputs["cross_attention_mask"][:, -1:]
        out = model(**given, **cache_argument(model, cache), use_cache=True)
        logits.append(out.logits[0, -1])
    return torch.stack(logits)


def usual(model: Any) -> DynamicCache:
    return DynamicCache(config=find_parts(model).decoder.config)


def similar(one: Tensor, other: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.float(), other.float(), dim=-1).min())


@pytest.mark.parametrize("name", VARIED)
def test_logits_are_those_of_transformers_cache(name: str) -> None:
    model = families.shared(name)
    inputs = families.inputs(name, model, size=2, text=30)
    wanted = read(model, usual(model), inputs)
    for kind, least in (("fp32", 1 - 1e-6), ("fp16", 0.9999), ("int8", 0.995), ("fp8_e4m3", 0.95), ("fp8_e5m2", 0.9)):
        cache = open_cache(model, 8, kv_kind(kind), unsafe=True)
        assert similar(read(model, cache, inputs), wanted) >= least, kind
        assert cache.nbytes == cache.bytes_per_token() * cache.capacity + cache.overhead_bytes()
        assert cache.tokens == inputs["input_ids"].shape[1] + 3
        assert int(cache.start) == cache.tokens
        for index in own_layers(model):
            assert cache.layers[index].keys.dtype == KINDS[kind].dtype


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "gemma4", "mllama"])
@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_a_rewind_is_the_chat_computed_afresh_or_refused(name: str, kind: str) -> None:
    model = families.shared(name)
    inputs = families.inputs(name, model, size=1, text=14)
    tokens = inputs["input_ids"].shape[1]
    cache = open_cache(model, 8, kv_kind(kind))
    read(model, cache, inputs, steps=0)
    fresh = copy.deepcopy(cache)
    wanted = read(model, fresh, _more(inputs), steps=1)
    read(model, cache, _more(inputs, 60), steps=2)
    kept = cache.crop(tokens)
    if kept == 0:  # a window had wrapped
        assert any(getattr(layer, "is_sliding", False) for layer in cache.layers)
        assert cache.tokens == 0
        assert not any(cache.layers[index].keys.float().any() for index in own_layers(model))
        return
    assert kept == cache.tokens == tokens
    assert similar(read(model, cache, _more(inputs), steps=1), wanted) >= 1 - 1e-5


def _more(inputs: dict[str, Tensor], token: int = 77) -> dict[str, Tensor]:
    """One more token of text."""
    given = {"input_ids": torch.tensor([[token]])}
    if "cross_attention_mask" in inputs:
        given["cross_attention_mask"] = inputs["cross_attention_mask"][:, -1:]
    return given


def test_a_recurrent_state_is_kept_whole_or_not_at_all() -> None:
    model = families.shared("qwen3_5")
    inputs = families.inputs("qwen3_5", model)
    cache = open_cache(model, 8, kv_kind("fp32"))
    wanted = read(model, cache, inputs)
    tokens = cache.tokens
    assert cache.crop(tokens) == tokens
    assert cache.crop(tokens - 1) == 0
    assert torch.equal(read(model, cache, inputs), wanted)  # nothing is left of the first time
    assert set(cache.kept) == {0, 1, 2}


def test_a_crop_leaves_a_pictures_keys_alone() -> None:
    model = families.shared("mllama")
    inputs = families.inputs("mllama", model)
    cache = open_cache(model, 8, kv_kind("fp32"))
    read(model, cache, inputs)
    before = cache.layers[1].keys.clone()
    assert cache.crop(-2) == cache.tokens
    assert torch.equal(cache.layers[1].keys, before)
    cache.reset()
    assert cache.tokens == 0


def test_a_model_that_needs_transformers_cache_keeps_it_and_says_why() -> None:
    model = families.shared("florence2")
    assert "encoder" in str(unusual(model))
    with pytest.raises(ModelError, match="encoder"):
        open_cache(model, 8, kv_kind("fp32"))
    said: list[str] = []
    assert decide(model, "auto", say=said.append).open(10) is None
    assert "transformers' own" in said[0]
    with pytest.raises(OptionError, match=r"encoder.*leave it out"):
        decide(model, "int8")


@pytest.mark.parametrize("kind", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_needs_offsets_where_keys_have_a_bias(kind: str) -> None:
    model = families.shared("qwen2_vl")
    with pytest.raises(OptionError, match=r"4 layers add a bias.*profile --kv"):
        decide(model, kind)
    warned: list[str] = []
    assert decide(model, kind, unsafe=True, warn=warned.append).open(4) is not None
    assert "--kv-unsafe" in warned[0]
    refuse(model, kv_kind("int8"), None)
    refuse(families.shared("llava"), kv_kind(kind), None)  # no bias there


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_prompt_in_chunks_sees_the_same_numbers(kind: str) -> None:
    """With ranges that were measured, what is stored of a token does not depend on what was read with it."""
    model = families.shared("gemma3")
    inputs = families.inputs("gemma3", model, text=60, picture=False)
    found = measure(model, [Prompted(inputs)])
    whole, parts = (open_cache(model, 8, kv_kind(kind), found) for _ in range(2))
    with torch.no_grad():
        one = model(**inputs, **cache_argument(model, whole), use_cache=True).logits[0, -1]
        for start in range(0, 60, 17):
            given = {"input_ids": inputs["input_ids"][:, start : start + 17]}
            other = model(**given, **cache_argument(model, parts), use_cache=True).logits[0, -1]
    assert similar(one, other) > 1 - 1e-5
    for index in own_layers(model):
        first, second = whole.layers[index], parts.layers[index]
        assert torch.equal(first.keys.float(), second.keys.float())


def test_offsets_are_not_used_where_they_would_not_cancel() -> None:
    plain = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(attn_logit_softcapping=None))
    capped = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(attn_logit_softcapping=50.0))
    parts = find_parts(families.shared("llava"))
    assert offsets_cancel(SimpleNamespace(config=plain), parts)
    assert not offsets_cancel(SimpleNamespace(config=capped), parts)
    sunk = torch.nn.Module()
    sunk.sinks = torch.nn.Parameter(torch.zeros(4))
    assert not offsets_cancel(SimpleNamespace(config=plain), SimpleNamespace(layers=(("0", sunk),)))  # type: ignore[arg-type]


def test_a_whole_cache_grows_resets_and_takes_turns() -> None:
    model = families.shared("llava")
    caching = decide(model, "int8")
    one, other = caching.open(10), caching.open(10)
    assert one is not None
    assert other is not None
    inputs = families.inputs("llava", model)
    wanted = read(model, one, inputs)
    read(model, other, families.inputs("llava", model, seed=5))
    assert one.capacity < 1000
    one.grow(1000)
    assert one.capacity >= 1000
    one.reset()
    assert torch.equal(read(model, one, inputs), wanted)
