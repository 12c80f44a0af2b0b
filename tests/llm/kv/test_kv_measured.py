"""What is measured beforehand: right numbers, kept under the right key, used, refused, and scales of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from safetensors.torch import save_file

from mmswap.errors import OptionError
from mmswap.llm.checkpoint import check_checkpoint
from mmswap.llm.kv.caching import decide
from mmswap.llm.kv.calibration import LEAST, Calibration, keep, recall
from mmswap.llm.kv.given import given_scales
from mmswap.llm.kv.kinds import kv_kind
from mmswap.llm.kv.layer import GrowingLayer
from mmswap.llm.kv.measuring import Prompted, _Numbers, key_of, measure
from mmswap.llm.kv.opening import own_layers
from mmswap.llm.kv.reading import passage
from mmswap.swap.dry_run import cache_argument
from mmswap.vision.tower import find_tower

OFFSET = 60.0


def biased() -> Any:
    """A model as Qwen2.5's: a few channels of the keys carry an offset from the bias, in channels that turn slowly."""
    model = families.build("qwen2_vl")
    for layer in model.model.language_model.layers:
        layer.self_attn.k_proj.bias.data.view(-1, 16)[:, [7, 15]] += OFFSET
        layer.self_attn.q_proj.weight.data.view(4, 16, 64)[:, [7, 15]] *= 0.02
    return model


def prompts(model: Any) -> list[Prompted]:
    tower = find_tower(model)
    pictured = families.inputs("qwen2_vl", model, size=2, text=20)
    features = tower.run(tower.call_for(pictured))
    text = families.inputs("qwen2_vl", model, text=100, picture=False)
    return [Prompted(text), Prompted(pictured, lambda: tower.replay(features))]


def test_numbers_are_those_of_the_keys_over_all_prompts() -> None:
    model = biased()
    asked = prompts(model)
    found = measure(model, asked, name="toy", chunk=32)
    assert (found.name, found.contexts) == ("toy", tuple(p.inputs["input_ids"].shape[1] for p in asked))
    assert sorted(found.layers) == [0, 1, 2, 3]
    keys = []
    for prompt in asked:
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(**prompt.inputs, **cache_argument(model, cache), use_cache=True)
        keys.append(cache.layers[2].keys[0])
    both = torch.cat(keys, 1)
    layer = found.layers[2]
    assert torch.allclose(torch.tensor(layer.mean), both.mean(1), atol=1e-3)
    assert torch.allclose(torch.tensor(layer.low), both.amin(1), atol=1e-3)
    assert torch.allclose(torch.tensor(layer.high), both.amax(1), atol=1e-3)
    assert max(map(abs, layer.mean[0])) > OFFSET / 2
    assert set(layer.cosine) == {"int8", "fp8_e4m3", "fp8_e5m2"}
    assert 0.99 < layer.cosine["int8"] <= 1


def test_what_was_measured_is_kept_by_the_models_weights_and_used_without_being_asked() -> None:
    model = biased()
    with pytest.raises(OptionError, match="profile --kv"):
        decide(model, "fp8_e4m3")
    found = measure(model, prompts(model))
    assert keep(found) is not None
    assert recall(found.key) == found
    said: list[str] = []
    caching = decide(model, "fp8_e4m3", say=said.append)
    assert caching.calibration == found
    assert "offsets measured on 134 tokens" in said[-1]
    cache = caching.open(10)
    assert cache is not None
    with torch.no_grad():
        model(**prompts(model)[0].inputs, **cache_argument(model, cache), use_cache=True)
    assert torch.allclose(cache.layers[1].k_offset, torch.tensor(found.layers[1].mean))
    worst = found.worst(kv_kind("fp8_e4m3"))
    assert worst is not None
    assert worst[1] >= LEAST
    other = biased()
    other.model.language_model.layers[0].self_attn.k_proj.bias.data[0] += 1
    assert key_of(other) != key_of(model) == key_of(biased()) == decide(model, "auto").key
    assert measure(model, prompts(model)[1:], key="as it was loaded").key == "as it was loaded"
    with pytest.raises(OptionError):
        decide(other, "fp8_e4m3")


def test_a_kind_that_was_measured_to_go_wrong_is_refused() -> None:
    model = families.shared("llava")
    inputs = families.inputs("llava", model, text=40, picture=False)
    found = measure(model, [Prompted(inputs)])
    found.layers[2].cosine["fp8_e5m2"] = LEAST - 0.02
    assert keep(found) is not None
    with pytest.raises(OptionError, match=r"layer 2 keeps a cosine of 0\.970.*int8"):
        decide(model, "fp8_e5m2")
    decide(model, "fp8_e5m2", unsafe=True)
    decide(model, "fp8_e4m3")


@pytest.mark.parametrize("damage", ["format", "key", "nan", "short", "list"])
def test_a_damaged_calibration_is_not_used(damage: str, own_cache: Path) -> None:
    model = families.shared("llava")
    found = measure(model, [Prompted(families.inputs("llava", model, text=20, picture=False))])
    place = keep(found)
    assert place is not None
    values = json.loads(place.read_text("utf-8"))
    if damage == "format":
        values["format"] = 99
    elif damage == "key":
        values["key"] = "0" * 32
    elif damage == "nan":
        values["layers"]["0"]["mean"][0][0] = float("nan")
    elif damage == "short":
        del values["layers"]["1"]["low"]
    else:
        values = [1]
    place.write_text(json.dumps(values), "utf-8")
    assert recall(found.key) is None


def test_a_calibration_of_other_heads_is_one_sentence() -> None:
    model = families.shared("llava")
    found = measure(model, [Prompted(families.inputs("llava", model, text=20, picture=False))])
    found.layers[0].mean[0].pop()
    found.layers[0].low[0].pop()
    found.layers[0].high[0].pop()
    for row in (found.layers[0].mean, found.layers[0].low, found.layers[0].high):
        row[1].pop()
    keep(found)
    cache = decide(model, "int8").open(8)
    with pytest.raises(OptionError, match="another model's"), torch.no_grad():
        model(input_ids=torch.tensor([[5, 6, 7]]), **cache_argument(model, cache), use_cache=True)


NAMES = (
    "self_attn.{}_scale",
    "self_attn.attn.{}_scale",
    "self_attn.{}_proj.{}_scale",
    "self_attn.{}_proj.output_scale",
)


@pytest.mark.parametrize("pattern", NAMES)
def test_scales_of_a_checkpoint_under_every_usual_name(pattern: str, tmp_path: Path) -> None:
    tensors = {"model.visual.layers.0.self_attn.k_scale": torch.tensor(9.0), "model.norm.weight": torch.ones(4)}
    for layer in range(3):
        for side, scale in (("k", 0.5), ("v", 2.0)):
            tensors[f"model.language_model.layers.{layer}.{pattern.format(side, side)}"] = torch.tensor([scale + layer])
            tensors[f"model.language_model.layers.{layer}.self_attn.{side}_proj.weight_scale"] = torch.ones(1)
            tensors[f"model.language_model.layers.{layer}.self_attn.{side}_proj.input_scale"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors")
    found = given_scales(check_checkpoint(tmp_path).tensors, [0, 1, 2])
    assert found.by_layer == {0: (0.5, 2.0), 1: (1.5, 3.0), 2: (2.5, 4.0)}
    assert found.said == ("KV scales come with the checkpoint, for layers 0-2.",)


def test_scales_that_are_partly_there_are_warned_about(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.self_attn.kv_scale": torch.tensor(0.25),
        "model.layers.1.self_attn.k_scale": torch.tensor(0.5),
        "model.layers.2.self_attn.k_scale": torch.tensor(float("nan")),
        "model.layers.2.self_attn.v_scale": torch.tensor(0.0),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = given_scales(check_checkpoint(tmp_path).tensors, [0, 1, 2, 3])
    assert found.by_layer == {0: (0.25, 0.25)}
    said = " ".join(found.said)
    assert "for layers 0." in said
    assert "Warning: layer 1 has a scale for keys or for values but not for both" in said
    assert "Warning: layers 1-3 have no KV scales" in said
    assert "no single number above 0" in said


def test_a_checkpoints_scales_serve_fp8_and_are_said(tmp_path: Path) -> None:
    model = families.shared("qwen2_vl")
    tensors = {
        f"model.layers.{layer}.self_attn.{side}_scale": torch.tensor(0.125) for layer in range(4) for side in "kv"
    }
    save_file(tensors, tmp_path / "model.safetensors")
    said: list[str] = []
    caching = decide(model, "fp8_e4m3", tensors=check_checkpoint(tmp_path).tensors, say=said.append)
    assert "layers 0-3" in said[0]
    cache = caching.open(8)
    assert cache is not None
    with torch.no_grad():
        model(input_ids=torch.arange(5, 30)[None], **cache_argument(model, cache), use_cache=True)
    assert all(bool((cache.layers[index].v_scale == 0.125).all()) for index in own_layers(model))
    del tensors["model.layers.3.self_attn.k_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(OptionError, match="1 layer adds a bias"):  # that one has neither offset nor scale
        decide(model, "fp8_e4m3", tensors=check_checkpoint(tmp_path).tensors)
    assert decide(model, "int8", tensors=check_checkpoint(tmp_path).tensors).calibration is None
    assert Calibration("", "", "").ranges(0, kv_kind("int8")) is None


def test_the_passage_has_as_many_tokens_as_are_asked_for() -> None:
    def tokenizer(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [3 + ord(letter) % 90 for letter in text]}

    for tokens in (16, 128, 9000):
        ids = passage(tokenizer, tokens)
        assert ids.shape == (1, tokens)
        assert int((ids == 1).sum()) == 1


def test_layers_with_heads_of_different_sizes_keep_their_own_numbers() -> None:
    """One calibration read the padding behind the smaller heads."""
    numbers = _Numbers()
    generator = torch.Generator().manual_seed(0)
    keys = {index: 3 + torch.randn(1, 2, 50, width, generator=generator) for index, width in ((0, 256), (1, 512))}
    for index, k in keys.items():
        numbers.take(index, k[:, :, :20], k[:, :, :20])
        numbers.take(index, k[:, :, 20:], k[:, :, 20:])
    found = Calibration("key", "", "", layers=numbers.layers())
    assert Calibration.of_json(json.loads(json.dumps(found.to_json()))) == found
    for index, k in keys.items():
        for kind in ("int8", "fp8_e4m3"):
            layer = GrowingLayer(kv_kind(kind), 64, known=found.ranges(index, kv_kind(kind)))
            again, values = layer.update(k, k)
            assert again.shape == k.shape
            assert float((again - k).abs().max()) < 0.3
            assert float((values - k).abs().max()) < 0.5
            assert torch.isfinite(layer.k_scale).all()
