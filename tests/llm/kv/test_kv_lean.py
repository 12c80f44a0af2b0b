"""Decode part by part over caches in 8 bits: what a step stores by itself is cut off for a while at most."""

from __future__ import annotations

import families
import pytest
import torch
from torch import nn

from mmswap.llm.fast import open_lean
from mmswap.llm.kv import KvCache, kv_kind, open_cache
from mmswap.llm.kv.layer import SETTLE
from mmswap.swap.dry_run import cache_argument


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3"])
@pytest.mark.parametrize("kind", ["fp16", "int8", "fp8_e4m3"])
def test_a_long_answer_keeps_near_the_models_own_forward(name: str, kind: str) -> None:
    """Twelve tokens of prompt say little of the ranges of a hundred more; blocks and windows are outgrown too."""
    model = families.build(name)
    lean = open_lean(model)
    ids = torch.randint(3, 380, (1, 112), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        truth = model(input_ids=ids).logits[0].float()
        cache = open_cache(model, 8, kv_kind(kind), unsafe=True)
        model(input_ids=ids[:, :12], **cache_argument(model, cache), use_cache=True)
    state = lean.begin(cache, None)
    found = torch.stack([lean(token, state).float().clone() for token in ids[0, 12:].tolist()])
    similar = nn.functional.cosine_similarity(found, truth[12:], dim=-1)
    assert similar.min() > {"fp16": 0.9999, "int8": 0.98, "fp8_e4m3": 0.9}[kind]
    state.settle()
    assert cache.tokens == 112
    assert int(cache.start) == 112


def test_ranges_widen_while_tokens_are_stored_by_hand() -> None:
    model = families.build("llava")
    cache = open_cache(model, 8, kv_kind("int8"))
    ids = torch.randint(3, 380, (1, 20))
    with torch.no_grad():
        model(input_ids=ids, **cache_argument(model, cache), use_cache=True)
        for layer in model.model.language_model.layers:  # the text changes its tone
            layer.self_attn.k_proj.weight *= 3
    assert isinstance(cache, KvCache)
    before = cache.layers[1].k_scale.clone()
    lean = open_lean(model)
    state = lean.begin(cache, None)
    for token in range(SETTLE + 1):
        lean(50 + token, state)
    assert bool((cache.layers[1].k_scale > 1.2 * before).any())
