"""A picture and each kind of cache through the runtime: an answer, bytes as claimed, weights back."""

from __future__ import annotations

import pytest
from fingerprint import fingerprint
from PIL import Image, ImageDraw

import mmswap
from mmswap.errors import OptionError
from mmswap.llm.kv.kinds import KINDS, blocks

KV = tuple(KINDS)
QUESTION = "Describe the picture."


def circle() -> Image.Image:
    image = Image.new("RGB", (300, 200), "white")
    ImageDraw.Draw(image).ellipse((66, 66, 132, 132), fill="red")
    return image


@pytest.fixture(scope="module")
def expected() -> str:
    return mmswap.load(card="cpu").chat(QUESTION, [circle()], max_new_tokens=16).text


@pytest.mark.parametrize("kind", KV)
def test_a_picture_prompt_with_every_kind(kind: str, expected: str) -> None:
    """One engine crashed only for models that see, with a quantised cache."""
    runtime = mmswap.load(card="sim:1GiB", kv=kind, mmproj_swap_layers=2)
    before, claims = fingerprint(runtime.model), []
    runtime.card.claim, claim = (  # type: ignore[method-assign]
        lambda label, nbytes: (claims.append((label, nbytes)), claim(label, nbytes)),
        runtime.card.claim,
    )
    answer = runtime.chat(QUESTION, [circle()], max_new_tokens=16)
    assert answer.text == expected
    assert len(answer.window.evicted) == 2
    assert answer.window.spilled_bytes == 0
    assert fingerprint(runtime.model) == before
    tokens = answer.prompt_tokens + answer.completion_tokens
    kept = max(nbytes for label, nbytes in claims if label == "KV cache")
    assert kept == runtime.memory.kv_bytes(tokens) == runtime.memory.kv_bytes(blocks(tokens))
    assert "KV cache" not in runtime.card.claims


def test_an_8_bit_cache_makes_room_for_a_longer_context() -> None:
    contexts = {}
    weights = sum(one.numel() * one.element_size() for one in mmswap.load(card="cpu").model.parameters())
    for kind in ("fp16", "int8", "fp8"):
        contexts[kind] = mmswap.load(card=f"sim:{weights + 3_000_000}", kv=kind).context
    assert contexts["fp16"] * 1.3 < contexts["int8"] <= contexts["fp8"] < 2048


@pytest.mark.parametrize("kind", ["fp7", "FP8", "", "int4"])
def test_a_kind_that_there_is_not_is_one_sentence(kind: str) -> None:
    with pytest.raises(OptionError, match=r"--kv .* is not known: use auto, fp32"):
        mmswap.load(card="cpu", kv=kind)
