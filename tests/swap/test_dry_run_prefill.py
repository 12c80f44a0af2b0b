"""Dry runs of the language model: a prefill is the real one, and what the cache grows by is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, build

from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import DryRun
from mmswap.swap.scratch import ScratchTable
from mmswap.swap.tracker import LiveTracker

FORMULAS = ScratchTable(None)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma4"])
def test_prefill_is_the_real_one_and_the_cache_is_known(name: str) -> None:
    from transformers import DynamicCache

    model = build(name)
    decoder = find_parts(model).decoder_name
    answer = DryRun(model, scratch=FORMULAS).prefill_peak(decoder, 40)
    module: Any = model.get_submodule(decoder)
    embeds = torch.ones(1, 40, 64)
    cache = DynamicCache(config=module.config)
    with torch.no_grad(), LiveTracker() as tracker:
        result = module(inputs_embeds=embeds, past_key_values=cache, use_cache=True).last_hidden_state
    assert result.shape == (1, 40, 64)
    assert answer.peak.how == "trace"
    assert answer.peak.live == tracker.peak
    assert answer.peak.output == 40 * 64 * 4
    if name in ("qwen2_vl", "idefics3", "glm4v"):
        assert answer.kv_bytes == 4 * 2 * 40 * 2 * 16 * 4
        assert answer.kv_bytes_per_token == 4 * 2 * 2 * 16 * 4


def test_prefill_of_a_decoder_with_embeddings_at_every_layer() -> None:
    model = build("gemma4")
    answer = DryRun(model, scratch=FORMULAS).prefill_peak(find_parts(model).decoder_name, 40)
    assert answer.peak.how == "trace"
    assert answer.kv_bytes > 0
