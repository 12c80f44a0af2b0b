"""Packed weights follow transformers' rules: split, stacked, turned, permuted; what mixes columns is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import pytest
import quant_folders
import torch
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import Chunk, PermuteForRope, WeightConverter, WeightRenaming

from mmswap.errors import ModelError
from mmswap.llm import renaming
from mmswap.llm.loader import load_model
from mmswap.llm.quant import QuantLinear
from mmswap.llm.renaming import Names

LAYER = "model.language_model.layers.0"


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What transformers says of the model, to be filled in."""
    told: list[Any] = []
    monkeypatch.setattr(renaming, "get_model_conversion_mapping", lambda _: told)
    return told


def test_a_fused_layer_is_split_in_4_bits(rules: list[Any], tmp_path: Path) -> None:
    quant_folders.write(tmp_path, "qwen2_5_vl", "gptq")
    wanted = load_model(tmp_path / "packed")
    rules += [
        WeightRenaming(source_patterns=r"^visual", target_patterns="model.visual"),
        WeightRenaming(source_patterns=r"^model(?!\.(language_model|visual))", target_patterns="model.language_model"),
        WeightConverter(
            source_patterns="mlp.both_proj.weight",
            target_patterns=["mlp.gate_proj.weight", "mlp.up_proj.weight"],
            operations=[Chunk(dim=0)],
        ),
    ]
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    for name in [name for name in tensors if ".layers." in name and "gate_proj" in name and "visual" not in name]:
        gate, up = tensors.pop(name), tensors.pop(name.replace("gate_proj", "up_proj"))
        own = gate if name.endswith("g_idx") else torch.cat([gate, up], 1)
        tensors[name.replace("gate_proj", "both_proj")] = own
    save_file(tensors, tmp_path / "packed" / "model.safetensors", {"format": "pt"})
    model = load_model(tmp_path / "packed")
    for part in ("gate_proj", "up_proj"):
        one, other = (m.model.language_model.layers[1].mlp.get_submodule(part) for m in (model, wanted))
        assert isinstance(one, QuantLinear)
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(one.packed.tensors(), other.packed.tensors()))


def test_rows_that_are_permuted_for_rotary_positions(rules: list[Any]) -> None:
    model = families.build("qwen2_5_vl", layers=1).to("meta")
    rule = WeightConverter(
        source_patterns="attn.wq.weight", target_patterns="self_attn.q_proj.weight", operations=[PermuteForRope()]
    )
    rules.append(rule)
    (rows,) = Names(model).rows({f"{LAYER}.attn.wq": 64})
    heads = getattr(model.config, "num_attention_heads", 1)
    wanted = torch.arange(64).view(heads, 64 // heads // 2, 2).transpose(1, 2).reshape(-1)
    assert rows.target == f"{LAYER}.self_attn.q_proj.weight"
    assert not rows.whole
    assert torch.equal(rows.split()[1], wanted)


def test_experts_that_lie_turned_in_the_model() -> None:
    model = families.build("aria").to("meta")
    stacked = model.get_parameter(f"{LAYER}.mlp.experts.gate_up_proj")
    experts, inputs, outputs = stacked.shape
    modules = {
        f"language_model.model.layers.0.mlp.experts.{expert}.{part}": outputs // 2
        for expert in range(experts)
        for part in ("gate_proj", "up_proj")
    }
    (rows,) = Names(model).rows(modules)
    assert rows.target == f"{LAYER}.mlp.experts.gate_up_proj"
    assert rows.transposed
    assert (rows.columns, tuple(rows.ids.shape)) == (inputs, (experts, outputs))
    source, row = rows.split()
    assert rows.sources[int(source[2, 0])].endswith("experts.2.gate_proj")
    assert rows.sources[int(source[2, -1])].endswith("experts.2.up_proj")
    assert torch.equal(row[1], torch.arange(outputs) % (outputs // 2))


def test_an_expert_that_is_missing_is_noticed() -> None:
    model = families.build("qwen3_vl_moe", layers=1).to("meta")
    modules = {f"{LAYER}.mlp.experts.{expert}.down_proj": 64 for expert in (0, 1, 3)}
    with pytest.raises(ModelError, match=r"experts\.down_proj has shape \[4, 64, 32\] and the file holds \[3, 64\]"):
        Names(model).rows(modules)


class Mixing(Chunk):
    """Adds neighbouring columns, as no packed weight can be."""

    def convert(self, input_dict: Any, source_patterns: Any, target_patterns: Any, **_: Any) -> Any:
        (value,) = input_dict.values()
        return {target_patterns[0]: (value[0] if isinstance(value, list) else value).flip(1)}


def test_what_moves_columns_is_refused(rules: list[Any]) -> None:
    model = families.build("qwen2_5_vl", layers=1).to("meta")
    rule = WeightConverter(
        source_patterns="attn.wo.weight", target_patterns="self_attn.o_proj.weight", operations=[Mixing()]
    )
    rules.append(rule)
    with pytest.raises(ModelError, match=r"attn\.wo is stored in 4 bits, and transformers mixes its columns"):
        Names(model).rows({f"{LAYER}.attn.wo": 64})


def test_two_modules_for_one_place_are_named() -> None:
    model = families.build("qwen2_5_vl", layers=1).to("meta")
    with pytest.raises(
        ModelError, match=r"language_model\.model\.layers\.0\.mlp\.up_proj|model\.layers\.0\.mlp\.up_proj"
    ):
        Names(model).rows({"language_model.model.layers.0.mlp.up_proj": 96, "model.layers.0.mlp.up_proj": 96})


@pytest.mark.parametrize("prefix", ["", "model.", "model.visual.", "visual.", "language_model.model."])
def test_plain_names_settle_where_the_model_has_them(prefix: str) -> None:
    names = Names(families.build("qwen2_5_vl", layers=1).to("meta"))
    own = "blocks.0.norm1.weight" if "visual" in prefix else "layers.0.input_layernorm.weight"
    settled = names.settled(prefix + own)
    renamed, _ = names._place(settled)
    assert renamed in names._known
    assert renamed.endswith(own)
