"""4-bit models in the whole runtime: windows bring packed layers back, bytes are those that were foreseen and planned,
and the tower of a float16 model stays finite."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import families
import pytest
import quant_folders
import torch
from fingerprint import fingerprint
from PIL import Image
from torch import nn
from whole_folders import make_whole

import mmswap
from mmswap.blueprint import Blueprint
from mmswap.errors import OptionError
from mmswap.llm.loader import load_model
from mmswap.llm.loading import Rounded4
from mmswap.llm.parts import find_parts
from mmswap.llm.quant import QuantLinear, QuantStack
from mmswap.recall import fingerprint_of
from mmswap.sizing.groups import weigh
from mmswap.sizing.weights import HEAD, LAYERS
from mmswap.vision.precision import keep_in_range
from mmswap.vision.tower import find_tower

NEW = 6
PICTURE = Image.radial_gradient("L").convert("RGB").resize((60, 60))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A whole folder of a family, with its packed twin beside it where a format is named."""

    @functools.cache
    def make(family: str, kind: str | None = None) -> Path:
        plain = make_whole(tmp_path_factory.mktemp(family) / "plain", family)
        if kind is None:
            return plain
        quant_folders.pack(plain, plain.parent / "packed", kind)
        return plain.parent / "packed"

    return make


def layer_bytes(model: nn.Module) -> int:
    held = [tensor for _, layer in find_parts(model).layers for tensor in (*layer.parameters(), *layer.buffers())]
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in held}.values())


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen2_5_vl", "gptq_act"),
        ("gemma3", None),
        ("qwen3_vl_moe", None),
    ],
)
def test_a_window_over_packed_layers_changes_no_answer(family: str, kind: str | None, folder_of: Any) -> None:
    quantize = {"quantize": "int4"} if kind is None else {}
    folder = folder_of(family, kind)
    answers = []
    for layers in (0, 3):
        runtime = mmswap.load(folder, card="sim:1GiB", mmproj_swap_layers=layers, **quantize)
        runtime.end_ids = frozenset()
        before = fingerprint(runtime.model)
        answer = runtime.chat("What is this?", [PICTURE], max_new_tokens=NEW)
        answers.append(answer)
        assert fingerprint(runtime.model) == before, "every weight is back, bit for bit"
        assert len(answer.window.evicted) == layers
        packed = [module for module in runtime.model.modules() if isinstance(module, (QuantLinear, QuantStack))]
        assert len(packed) >= 4 * 4
        load = runtime.tally.load
        assert abs(load.weights_predicted - load.weights_measured) <= load.weights_measured / 100
    assert answers[0].text == answers[1].text
    assert answers[0].completion_tokens == answers[1].completion_tokens == NEW


@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl_moe", "mllama", "qwen3_5"])
def test_what_plan_counts_in_4_bits_is_what_the_loader_makes(family: str, tmp_path: Path) -> None:
    plain = families.build(family)
    held = weigh(plain, find_tower(plain), find_parts(plain), "int4")
    plain.save_pretrained(tmp_path)
    said: list[str] = []
    model = load_model(tmp_path, quantize=Rounded4(), say=said.append)
    assert layer_bytes(model) == held.groups[LAYERS]
    assert "SQNR" in said[0]
    parts = find_parts(model)
    assert not any(isinstance(module, QuantLinear) for module in parts.head.modules())
    assert not any(
        isinstance(module, (QuantLinear, QuantStack))
        for _, tower in find_tower(model).modules
        for module in tower.modules()
    )
    if not parts.tied:
        assert sum(tensor.nbytes for tensor in parts.head.parameters()) == held.groups[HEAD]


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_rounded_when_asked(tied: bool, tmp_path: Path) -> None:
    make_whole(tmp_path / "model", "qwen2_5_vl", tied=tied)
    runtime = mmswap.load(tmp_path / "model", card="cpu", quantize="int4", quantize_head=True)
    parts = find_parts(runtime.model)
    assert isinstance(parts.head, QuantLinear)
    assert isinstance(parts.embeddings, nn.Embedding), "the embedding stays, also where the two were one"
    assert any("matrices were rounded to 4 bits" in said and "SQNR" in said for said in runtime.decisions)
    assert runtime.chat("What is this?", max_new_tokens=2).text is not None


def test_the_carried_model_answers_right_in_4_bits() -> None:
    rounded = mmswap.load(card="sim:1GiB", quantize="int4")
    pictures = Path(__file__).parent.parent / "examples" / "pictures"
    told = {
        "stop.png": "the word stop in orange on a black background",
        "seven.png": "the digit 7 in purple on a white",
    }
    for name, wanted in told.items():
        assert rounded.chat("Describe the picture.", [pictures / name]).text.startswith(wanted)


def test_a_profile_of_the_plain_checkpoint_serves_the_packed_one(folder_of: Any) -> None:
    packed = folder_of("gemma3", "awq")
    prints = set()
    for folder in (packed.parent / "plain", packed):
        blueprint, model = Blueprint.of(folder), load_model(folder)
        prints |= {fingerprint_of(one.config, model.dtype, "sdpa", "card") for one in (blueprint, model)}
    assert len(prints) == 1


def test_rounding_what_is_packed_already_changes_nothing(folder_of: Any) -> None:
    runtime = mmswap.load(folder_of("gemma3", "awq"), card="cpu", quantize="int4")
    assert any("--quantize int4 changes nothing" in said for said in runtime.decisions)


def test_options_that_make_no_sense() -> None:
    with pytest.raises(OptionError, match=r"--quantize must be int4, not int3"):
        mmswap.load(quantize="int3")
    with pytest.raises(OptionError, match=r"--quantize-head goes with --quantize int4"):
        mmswap.load(quantize_head=True)


def overflowing(dtype: torch.dtype) -> nn.Module:
    """A model whose tower passes 65504 inside: one bias of 5.4e4, times 4, taken back at the end (case D8)."""
    model = families.build("qwen2_5_vl", dtype=dtype)
    mlp = model.model.visual.blocks[1].mlp
    mlp.up_proj.bias.data[:4] = 5.4e4
    mlp.gate_proj.weight.data[:4] = 0
    mlp.gate_proj.bias.data[:4] = 4.0
    mlp.down_proj.weight.data[:, :4] *= 2e-5
    return model


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_the_tower_of_a_float16_model_stays_finite_at_any_size(wide: torch.dtype) -> None:
    truth, narrow, kept = overflowing(torch.float32), overflowing(torch.float16), overflowing(torch.float16)
    keep_in_range(kept, wide)
    for size in (1, 2, 3):
        picture = families.image_inputs("qwen2_5_vl", truth, size=size)
        found = [torch.cat(model.get_image_features(**picture).pooler_output) for model in (truth, narrow, kept)]
        assert not bool(torch.isfinite(found[1]).all()), "in float16 it overflows"
        assert found[2].dtype == torch.float16
        assert bool(torch.isfinite(found[2]).all())
        assert float(torch.nn.functional.cosine_similarity(found[2].float(), found[0], dim=-1).min()) >= 0.999


def test_the_towers_dtype_is_said(tmp_path: Path) -> None:
    make_whole(tmp_path / "model", "qwen2_5_vl", dtype=torch.float16)
    for card in ("cpu", "sim:1GiB"):
        runtime = mmswap.load(tmp_path / "model", card=card)
        assert any(said.startswith("The vision tower runs in bfloat16, because") for said in runtime.decisions)
        assert {tensor.dtype for _, part in find_tower(runtime.model).modules for tensor in part.parameters()} == {
            torch.bfloat16
        }
        assert find_parts(runtime.model).embeddings.weight.dtype == torch.float16
        answer = runtime.chat("What is this?", [PICTURE], max_new_tokens=2)
        assert answer.images
