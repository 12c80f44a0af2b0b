"""Weights and caches of a plan against real models: what is calculated from shapes is what real tensors take."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch

from mmswap.card import SimulatedCard
from mmswap.llm.kv import open_cache
from mmswap.llm.kv.kinds import KINDS, blocks
from mmswap.llm.kv.opening import own_layers
from mmswap.llm.kv.shapes import layout_of
from mmswap.llm.parts import find_parts
from mmswap.sizing.cache import shortened
from mmswap.sizing.groups import weigh
from mmswap.sizing.packing import packed_bytes
from mmswap.sizing.weights import EMBEDDINGS, HEAD, LAYERS, PROJECTOR, TOWER
from mmswap.swap.dry_run import DryRun, cache_argument
from mmswap.swap.fake import fake_twin
from mmswap.swap.intercept import intercepted
from mmswap.swap.pool import SwapPool
from mmswap.swap.replay import TORCH
from mmswap.vision.tower import find_tower

WEIGHED = [
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "gemma3",
    "gemma4",
    "smolvlm",
    "llava_onevision",
    "internvl",
    "pixtral",
    "paligemma",
    "mllama",
    "qwen3_vl_moe",
    "lfm2_vl",
    "florence2",
    "blip_2",
    "minicpmv4_6",
]
# full, hybrid, sliding, cross, convolution, grouped, mixtures of experts, none shared, many layers of one kind
CACHED = ["qwen2_vl", "qwen3_5", "gemma3", "mllama", "lfm2_vl", "aya_vision", "glm4v_moe", "blip_2", "minicpmv4_6"]
STEPS = 40  # beyond the windows of the tiny models


@pytest.mark.parametrize("name", WEIGHED)
def test_groups_add_up_to_the_real_weights_and_the_ladder_is_the_pools(name: str) -> None:
    model = families.shared(name)
    parts, tower = find_parts(model), find_tower(model)
    held = weigh(model, tower, parts)
    real = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    assert held.total == sum(tensor.numel() * tensor.element_size() for tensor in real.values())
    assert held.vision == _bytes(*(module for _, module in tower.modules))
    assert held.groups[LAYERS] == _bytes(*(layer for _, layer in parts.layers))
    assert held.groups[HEAD] == (0 if parts.tied else _bytes(parts.head))
    assert held.groups[EMBEDDINGS] > 0
    assert [(rung.name, rung.nbytes) for rung in held.ladder] == [(rung.name, rung.nbytes) for rung in _rungs(name)]


def test_a_model_without_weights_weighs_the_same() -> None:
    model = families.shared("gemma3")
    blank = fake_twin(model)
    one, other = (weigh(twin, find_tower(twin), find_parts(twin)) for twin in (model, blank))
    assert one == other


def test_a_merger_inside_the_tower_is_the_projector() -> None:
    model = families.shared("qwen2_5_vl")
    held = weigh(model, find_tower(model), find_parts(model))
    assert held.groups[PROJECTOR] == _bytes(find_tower(model).modules[0][1].get_submodule("merger"))
    assert held.groups[TOWER] > held.groups[PROJECTOR] > 0


def test_int4_packs_the_linear_layers_of_the_decoder_and_nothing_else() -> None:
    model = families.shared("qwen2_5_vl")
    parts, tower = find_parts(model), find_tower(model)
    plain, packed = weigh(model, tower, parts), weigh(model, tower, parts, "int4")
    linears = [part for _, layer in parts.layers for part in layer.modules() if isinstance(part, torch.nn.Linear)]
    saved = sum(_bytes_of(part.weight) - packed_bytes(part.out_features, part.in_features) for part in linears)
    assert plain.groups[LAYERS] - packed.groups[LAYERS] == saved > 0
    assert {name for name in plain.groups if plain.groups[name] != packed.groups[name]} == {LAYERS}
    assert packed.unpacked == max(_bytes_of(part.weight) for part in linears)


def test_int4_packs_stacked_experts() -> None:
    model = families.shared("qwen3_vl_moe")
    parts, tower = find_parts(model), find_tower(model)
    plain, packed = weigh(model, tower, parts), weigh(model, tower, parts, "int4")
    assert packed.groups[LAYERS] < 0.35 * plain.groups[LAYERS]  # rows of 64 are padded to a whole group of 128


@pytest.mark.parametrize("kind", ["fp32", "int8"])
@pytest.mark.parametrize("name", CACHED)
def test_a_cache_takes_what_a_real_one_holds_after_a_prompt(name: str, kind: str) -> None:
    model = families.shared(name)
    parts = find_parts(model)
    given = families.inputs(name, model)
    cache, extra = open_cache(model, 10, KINDS[kind]), _cross(parts.decoder, model, given)
    with torch.no_grad():
        model(**given, **cache_argument(model, cache), use_cache=True)
    assert _layout(model, extra).nbytes(given["input_ids"].shape[1], KINDS[kind]) == cache.nbytes


@pytest.mark.parametrize("name", ["gemma3", "aya_vision", "qwen3_5"])
def test_a_cache_takes_what_a_real_one_holds_when_its_windows_are_full(name: str) -> None:
    model, kind = families.shared(name), KINDS["fp32"]
    parts, cache = find_parts(model), open_cache(model, 10, kind)
    width = parts.embeddings.weight.shape[1]
    with torch.no_grad():
        for _ in range(STEPS):
            parts.decoder(
                inputs_embeds=torch.randn(1, 1, width), **cache_argument(parts.decoder, cache), use_cache=True
            )
    layout = _layout(model, {})
    assert layout.nbytes(STEPS, kind) == cache.nbytes
    unbounded = blocks(STEPS) * layout.per_token(kind) + layout.states
    assert (layout.nbytes(STEPS, kind) < unbounded) == any(row.window for row in layout.rows)


def test_a_cache_that_is_not_ours_is_counted_in_the_models_own_dtype() -> None:
    """An encoder's keys do not grow; its decoder's do, by what transformers keeps."""
    model = families.shared("florence2")
    assert own_layers(model) == {}
    parts = find_parts(model)
    layout = layout_of(DryRun(model), parts.decoder_name, own_layers(model))
    assert layout is None or not layout.ours


def _layout(model: Any, extra: dict[str, Any]) -> Any:
    """As a plan finds it: with one layer of each kind."""
    decoder = shortened(find_parts(model), TORCH)
    layout = layout_of(decoder.dry_run, "", own_layers(model), decoder.counts, extra)
    assert layout is not None
    return layout


def _rungs(name: str) -> tuple[Any, ...]:
    model = families.build(name)
    parts = find_parts(model)
    units = list(parts.layers) if parts.tied else [*parts.layers, (parts.head_name, parts.head)]
    return SwapPool(units, SimulatedCard("sim:1GiB"), root=model).rungs


def _cross(decoder: Any, model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What the decoder is given for cross attention."""
    seen: dict[str, Any] = {}
    forward = decoder.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        seen.update({k: v for k, v in kwargs.items() if k == "cross_attention_states" and v is not None})
        return forward(*args, **kwargs)

    with intercepted(decoder, "forward", run), torch.no_grad():
        model(**given)
    return seen


def _bytes(*modules: torch.nn.Module) -> int:
    tensors = {id(t): t for module in modules for t in (*module.parameters(), *module.buffers())}
    return sum(map(_bytes_of, tensors.values()))


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
