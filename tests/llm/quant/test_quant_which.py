"""Which modules are packed (case D7): the file decides, the config confirms, a vision tower is never mistaken."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from stored_layers import awq, compressed, gptq

from mmswap.errors import ModelError
from mmswap.llm.quant import read, which
from mmswap.llm.quant.ignore import listed
from mmswap.llm.quant.names import core

TOWERS = ("model.visual.", "visual.")
LANGUAGES = ("model.language_model.", "language_model.model.", "model.")
IGNORES: dict[str, Any] = {
    "a name": ["visual.blocks.0.mlp.gate_proj", "lm_head"],
    "a long name": ["model.visual.blocks.0.mlp.gate_proj"],
    "a dot behind": ["visual."],
    "dots around": [".visual.blocks.0."],
    "a pattern": ["re:.*visual.*"],
    "a pattern from the begin": ["re:visual.*"],
    "a pattern from model": ["re:model.visual.*"],
    "a part": ["visual"],
    "nothing": [],
    "null": None,
}


def two_towers(tower: str, language: str) -> tuple[dict[str, torch.Tensor], dict[str, Any], str, str]:
    """A file in which both towers have an mlp.gate_proj, that of the vision side plain."""
    layer = compressed(128, 16, 32)
    seen, packed = f"{tower}blocks.0.mlp.gate_proj", f"{language}layers.0.mlp.gate_proj"
    tensors = {f"{seen}.weight": torch.randn(16, 128, dtype=torch.bfloat16), f"{seen}.bias": torch.randn(16)}
    tensors |= {f"{packed}.{suffix}": tensor for suffix, tensor in layer.tensors.items()}
    tensors |= {f"{language}layers.0.input_layernorm.weight": torch.ones(16), "lm_head.weight": torch.ones(8, 16)}
    return tensors, layer.section, seen, packed


@pytest.mark.parametrize(("tower", "language"), list(itertools.product(TOWERS, LANGUAGES)))
@pytest.mark.parametrize("entries", IGNORES.values(), ids=IGNORES.keys())
def test_tower_stays_plain_under_any_name(tower: str, language: str, entries: list[str] | None) -> None:
    tensors, section, seen, packed = two_towers(tower, language)
    found = which({"quantization_config": section | {"ignore": entries}}, tensors)
    assert list(found.packed) == [packed]
    assert found.packed[packed].tensors == tuple(f"{packed}.{suffix}" for suffix in sorted(compressed().tensors))
    assert "the file decides" not in found.reason
    if entries:
        assert listed(seen, entries) == entries[0], "the entry names the tower in every version's spelling"
        assert listed(packed, entries) is None


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        ("mlp.gate", "model.layers.0.mlp.gate_proj"),
        ("model.layers.1", "model.layers.10.mlp.up_proj"),
        ("model.layers.0", "vision_tower.layers.0.fc1"),
        ("model.language_model.layers.0.fc1", "vision_tower.layers.0.fc1"),
        ("re:.*language_model.*", "visual.blocks.0.fc1"),
        ("re:language_model.*", "model.visual.blocks.0.fc1"),
        ("", "model.layers.0"),
        (".", "model.layers.0"),
    ],
)
def test_entries_that_name_another_module(entry: str, module: str) -> None:
    assert listed(module, [entry]) is None


def test_pattern_that_is_none() -> None:
    with pytest.raises(ModelError, match=r"re:\*\*.*no pattern"):
        listed("visual.fc1", ["re:**"])


def test_cores() -> None:
    assert core("model.language_model.layers.0") == core("language_model.model.layers.0") == "layers.0"
    assert core("model.visual.blocks.0") == "visual.blocks.0"
    assert core("model") == "model"


def hidden(section: dict[str, Any], *path: str) -> dict[str, Any]:
    config: dict[str, Any] = {"quantization_config": section}
    for part in reversed(path):
        config = {"model_type": "toy", "quantization_config": None, part: config}
    return config


@pytest.mark.parametrize("path", [(), ("text_config",), ("thinker_config", "text_config"), ("llm_config",)])
def test_quantization_config_hidden_inside(path: tuple[str, ...]) -> None:
    layer = awq()
    config = hidden(layer.section, *path)
    assert [one.scheme.method for one in which(config, layer.named).packed.values()] == ["awq"]


@pytest.mark.parametrize("empty", [{}, None, "gptq"])
def test_section_that_says_nothing_hides_none(empty: Any) -> None:
    layer = awq()
    config = {"quantization_config": empty, "text_config": {"quantization_config": layer.section}}
    assert len(which(config, layer.named).packed) == 1


def test_section_of_a_tower_says_nothing_of_the_language_model() -> None:
    layer = awq()
    config = {"vision_config": {"quantization_config": gptq().section}}
    with pytest.raises(ModelError, match="no quantization_config"):
        which(config, layer.named)
    config["text_config"] = {"quantization_config": layer.section}
    assert [one.scheme.method for one in which(config, layer.named).packed.values()] == ["awq"]


def test_plain_checkpoints() -> None:
    names = ["visual.fc.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.bias"]
    assert which({}, names).packed == {}
    found = which({"quantization_config": gptq().section}, names)
    assert found.packed == {}
    assert "though the config says gptq" in found.reason


def test_packed_although_the_config_lists_it() -> None:
    layer = compressed()
    found = which({"quantization_config": layer.section | {"ignore": ["re:.*down_proj"]}}, layer.named)
    assert len(found.packed) == 1
    assert "1 of them the config calls not quantised" in found.reason


def test_bias_goes_with_its_module_and_is_a_copy() -> None:
    layer = gptq(bias=True)
    (stored,) = which(layer.config, layer.named).packed.values()
    _, bias = read(stored, layer.named)
    assert bias is not None
    assert torch.equal(bias, layer.tensors["bias"])
    assert bias.data_ptr() != layer.tensors["bias"].data_ptr(), "it would keep a mapped file open"


def test_groups_of_a_config_are_told_apart_by_their_targets() -> None:
    layer = compressed(128, 16, 32)
    one = layer.section["config_groups"]["group_0"]
    other = {"targets": ["re:.*self_attn.*"], "weights": one["weights"] | {"group_size": 64}}
    section = layer.section | {"config_groups": {"group_0": one, "group_1": other}}
    names = ["model.layers.0.self_attn.q_proj.weight_packed", "model.layers.0.mlp.up_proj.weight_packed"]
    found = which({"quantization_config": section}, names).packed
    assert [stored.scheme.group_size for stored in found.values()] == [32, 64]


def test_settings_of_one_module_in_gptq() -> None:
    section = gptq().section | {"dynamic": {"-:.*visual.*": {}, r"+:.*\.1\..*": {"group_size": 64}}}
    found = which({"quantization_config": section}, ["model.layers.0.up.qweight", "model.layers.1.up.qweight"]).packed
    assert [stored.scheme.group_size for stored in found.values()] == [16, 64]
    section["dynamic"][r".*\.0\..*"] = {"bits": 8}
    with pytest.raises(ModelError, match=r"layers\.0\.up is stored with bits 8"):
        which({"quantization_config": section}, ["model.layers.0.up.qweight"])
