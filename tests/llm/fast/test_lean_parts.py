"""Layers on the same input as one: the same numbers in every place, in the lean step and in the model's own forward."""

from __future__ import annotations

import families
import pytest
import torch
from decoding import ours
from torch import nn

from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import open_lean
from mmswap.llm.fast.merge import merge
from mmswap.llm.fast.part import Part, joined, shared_by
from mmswap.llm.parts import find_parts
from mmswap.llm.quant import QuantLinear, quantise
from mmswap.llm.rounding import Rounding


def layer(out: int, columns: int = 96, *, bias: bool = False, prepared: bool = True, seed: int = 0) -> QuantLinear:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, columns, generator=random)
    made = QuantLinear(
        quantise(weight, group_size=32).packed,
        torch.randn(out, generator=random).bfloat16() if bias else None,
        torch.bfloat16,
    )
    if prepared:
        assert made.prepare("cpu") is None
    return made


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(64, 64, 64), (128, 64, 48), (192, 16)])
def test_parts_give_what_the_layers_gave(rows: tuple[int, ...], bias: bool, prepared: bool) -> None:
    layers = [layer(out, bias=bias, prepared=prepared, seed=seed) for seed, out in enumerate(rows)]
    parts = joined(layers)
    assert parts is not None
    assert shared_by(parts) is parts[0].shared
    assert shared_by(parts[1:]) is None
    assert sum(one.nbytes for one in layers) == sum(t.nbytes for p in parts for t in (*p.buffers(), *p.parameters()))
    for x in (torch.randn(1, 96).bfloat16(), torch.randn(2, 5, 96).bfloat16()):
        for part, one in zip(parts, layers):
            assert torch.equal(part(x), one(x))
        assert torch.equal(parts[1](x), layers[1](x)), "asked out of turn"
    for part, one in zip(parts, layers):
        assert torch.equal(part.weight, one.weight)
        assert (part.bias is None) == (one.bias is None)


@pytest.mark.parametrize(
    "layers",
    [
        [layer(48), layer(64)],  # rows of blocks would be cut
        [layer(64), layer(64, columns=128)],
        [layer(64), layer(64, bias=True)],
        [layer(64), layer(64, prepared=False)],
        [layer(64), nn.Linear(96, 64)],
        [layer(64)],
    ],
)
def test_what_cannot_be_one_stays_apart(layers: list[nn.Module]) -> None:
    assert joined(layers) is None


def test_nothing_is_kept_of_an_input() -> None:
    parts = joined([layer(64), layer(64, seed=1)])
    assert parts is not None
    x = torch.randn(1, 96).bfloat16()
    for part in parts:
        part(x)
    assert parts[0].shared._given is None
    assert parts[0].shared._result is None


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "cohere2_vision", "qwen3_vl"])
def test_a_merged_model_answers_as_before(name: str) -> None:
    model = families.build(name)
    rounding = Rounding(find_parts(model), torch.float32)
    for target in sorted(rounding.targets):
        rounding.take(model, target, model.get_parameter(target).detach())
    inputs = families.inputs(name, model)
    wanted = ours(model, inputs)
    assert ours(model, inputs, decoding=Decoding(open_lean(model))) == wanted
    assert merge(model, open_lean(model)) == 4 * 5, "query, key, value, gate, up in four layers"
    assert sum(isinstance(part, Part) for part in model.modules()) == 4 * 5
    assert ours(model, inputs, decoding=Decoding(open_lean(model))) == wanted
    assert ours(model, inputs) == wanted
