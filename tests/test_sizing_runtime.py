"""A plan against the runtime: what is calculated for the carried model is what `chat` then does on such a card.

A plan counts the KV cache full; when a window opens in `chat`, the prompt has not been read yet and there is none. So
a card that is larger by the full cache is planned for.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image

import mmswap
from mmswap.blueprint import Blueprint
from mmswap.errors import ContextOverflow, OptionError
from mmswap.llm.parts import find_parts
from mmswap.runtime import carried_model
from mmswap.sizing import Sizing, Wish, room_of, size_up
from mmswap.swap.dry_run import cache_argument

SIZE = (384, 320)
CONTEXT = 2048


@cache
def blueprint() -> Blueprint:
    return Blueprint.of(carried_model())


@cache
def sized(spec: str, **wish: Any) -> Sizing:
    return size_up(blueprint(), room_of(spec), Wish(*SIZE, **{"context": CONTEXT, **wish}))


def holding() -> tuple[int, int]:
    """Bytes of weights and of the full cache."""
    groups = sized("sim:1GiB").groups
    return sum(groups.values()) - groups["KV cache"], groups["KV cache"]


@pytest.mark.parametrize("spare", [4 << 20, 1_400_000, 1_100_000, 1_000_000])
def test_the_units_that_a_plan_names_are_those_that_chat_evicts(spare: int) -> None:
    weights, kv = holding()
    planned = sized(f"sim:{weights + spare + kv}")
    runtime = mmswap.load(card=f"sim:{weights + spare}")
    window = runtime.chat("What is this?", images=[Image.new("RGB", SIZE, "white")], max_new_tokens=1).window
    assert planned.evict == tuple(window.evicted)
    assert (planned.need, planned.free, planned.deficit) == (window.need, window.free, window.deficit)
    assert planned.lent == window.evicted_bytes
    assert window.spilled_bytes == 0


def test_patches_and_tokens_are_those_of_the_real_processor() -> None:
    runtime = mmswap.load(card="sim:1GiB")
    (image,) = runtime.chat("What?", images=[Image.new("RGB", SIZE, "white")], max_new_tokens=1).images
    encoding = sized("sim:1GiB").encoding
    assert (encoding.patches, encoding.tokens) == (image.patches, image.tokens)
    assert encoding.live <= image.peak_predicted <= encoding.peak <= encoding.reserved


@pytest.mark.parametrize("spare", [-(1 << 20), 0, 1_000_000, 3 << 20, 64 << 20])
def test_the_sums_hold_on_every_card(spare: int) -> None:
    plan = sized(f"sim:{sum(holding()) + spare}")
    values = plan.to_json()
    assert sum(values["groups"].values()) + values["card"]["free"] == values["card"]["total"]
    assert values["deficit"] == max(0, values["need"] - values["card"]["free"])
    for held in plan.moments.values():
        assert sum(held.values()) == plan.total
    assert values["window_ms"] == pytest.approx(plan.lent / plan.link_rate * 1e3)
    if spare < 0:
        assert plan.free == spare
        assert plan.fits == "no"
        assert plan.shortfall > 0
        assert plan.evict == ()


def test_more_room_never_makes_less_fit() -> None:
    plans = [sized(f"sim:{sum(holding()) + spare}") for spare in (0, 1_000_000, 3 << 20, 6 << 20, 64 << 20)]
    for less, more in itertools.pairwise(plans):
        for name in ("context", "context_with_window", "pixels", "pixels_with_window"):
            assert getattr(less.limits, name) <= getattr(more.limits, name)
    for plan in plans:
        assert plan.limits.context <= plan.limits.context_with_window
        assert plan.limits.pixels <= plan.limits.pixels_with_window


def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    spec = f"sim:{sum(holding()) - (2 << 20)}"
    longest = sized(spec).limits.context_with_window
    assert 100 < longest < CONTEXT
    assert sized(spec, context=longest).fits != "no"
    assert sized(spec, context=longest + 1).fits == "no"


def test_the_largest_picture_fits_and_the_next_size_does_not() -> None:
    wish = Wish(80, 80, context=128)  # the carried model sees 6400 to 9216 pixels, in cells of 16
    asked = size_up(blueprint(), room_of("sim:1GiB"), wish)
    spec = f"sim:{sum(asked.groups.values()) + asked.need + 1000}"
    plan = size_up(blueprint(), room_of(spec), wish)
    width, height = plan.limits.image
    fitting = size_up(blueprint(), room_of(spec), Wish(width, height, context=128))
    assert (fitting.fits, fitting.deficit) == ("fits", 0)
    wider, higher = _next(width, height, fitting.encoding.patches)
    assert size_up(blueprint(), room_of(spec), Wish(wider, higher, context=128)).deficit > 0
    assert plan.limits.pixels < plan.limits.pixels_with_window


def _next(width: int, height: int, patches: int) -> tuple[int, int]:
    """The first larger picture of that ratio with more patches."""
    edge = max(width, height)
    for longer in range(edge + 1, 2 * edge):
        size = (round(width * longer / edge), round(height * longer / edge))
        if blueprint().picture(*size).patches > patches:
            return size
    raise AssertionError("the largest picture is what the processor allows: this card is too large for the test")


def test_what_caps_a_limit_is_said() -> None:
    said = " ".join(sized("sim:1GiB").reasons)
    assert "capped by the model: it was made for 2048 tokens" in said
    assert "not a measurement" in said


def test_two_pictures_take_more_than_one_and_int4_less_than_none() -> None:
    one, two, packed = sized("sim:1GiB"), sized("sim:1GiB", images=2), sized("sim:1GiB", quantize="int4")
    assert two.encoding.patches == 2 * one.encoding.patches
    assert two.need > one.need
    assert packed.groups["decoder layers"] < 0.5 * one.groups["decoder layers"]
    assert packed.groups["vision tower"] == one.groups["vision tower"]


def test_the_caches_format_counts() -> None:
    sizes = {kv: sized("sim:1GiB", kv=kv).groups["KV cache"] for kv in ("fp32", "fp16", "int8", "fp8")}
    assert sizes["fp32"] == 2 * sizes["fp16"]
    assert sizes["fp8"] < sizes["int8"] < 0.6 * sizes["fp16"]
    told = {kv: any("profile --kv" in one for one in sized("sim:1GiB", kv=kv).reasons) for kv in ("int8", "fp8")}
    assert told == {"int8": False, "fp8": True}


@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_the_cache_of_a_plan_is_the_one_that_chat_has(kv: str) -> None:
    """Full, to the byte: what is planned, what the runtime counts with, and what is really held."""
    runtime = mmswap.load(card="sim:1GiB", kv=kv, context=CONTEXT)
    planned = sized("sim:1GiB", kv=kv).groups["KV cache"]
    cache = runtime.caching.open(CONTEXT)
    assert cache is not None
    embeddings = find_parts(runtime.model).embeddings.weight
    ids = torch.arange(5, 25)[None].to(embeddings.device)
    with torch.no_grad():
        runtime.model(input_ids=ids, **cache_argument(runtime.model, cache), use_cache=True)
    assert planned == runtime.memory.kv_bytes(CONTEXT) == cache.nbytes


def test_a_context_above_the_models_or_below_the_picture_is_one_sentence() -> None:
    with pytest.raises(OptionError, match="2048"):
        sized("sim:1GiB", context=4096)
    with pytest.raises(ContextOverflow) as told:
        sized("sim:1GiB", context=16)
    assert told.value.context == 16
    assert "16" in str(told.value)
    assert str(told.value.prompt_tokens) in str(told.value)
