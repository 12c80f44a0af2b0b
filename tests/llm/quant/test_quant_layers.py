"""What stands in a model in place of plain weights: merged layers, other layouts, `weight` for whoever asks, stacks of
experts as a parameter and as a computation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from stored_layers import gptq
from torch import Tensor, nn
from torch.nn import functional

from mmswap.llm.ops import cpu_layout
from mmswap.llm.quant import QuantLinear, QuantStack, merged, quantise, read, which
from mmswap.llm.quant.experts import pack_experts
from mmswap.swap.unit import survey

DRAW = torch.Generator().manual_seed(0)


def packed(out: int, columns: int, group: int = 32, *, bias: bool = False, act: int | None = None) -> QuantLinear:
    if act is not None:
        made = gptq(columns, out, group, act=True, seed=act)
        (stored,) = which(made.config, made.named).packed.values()
        return QuantLinear(*read(stored, made.named))
    weight = torch.randn(out, columns, generator=DRAW)
    return QuantLinear(quantise(weight, group_size=group).packed, torch.randn(out, generator=DRAW) if bias else None)


@pytest.mark.parametrize("bias", [False, True])
def test_merged_layers_give_the_outputs_of_all(bias: bool) -> None:
    layers = [packed(out, 96, bias=bias) for out in (32, 16, 48)]
    whole = merged(layers)
    assert whole is not None
    x = torch.randn(5, 96, generator=DRAW)
    assert torch.equal(whole(x), torch.cat([layer(x) for layer in layers], -1))
    assert (whole.bias is not None) == bias


def test_layers_of_one_order_are_merged_and_others_are_not() -> None:
    one, same, other = packed(32, 64, 16, act=3), packed(32, 64, 16, act=3), packed(32, 64, 16, act=4)
    whole, x = merged([one, same]), torch.randn(3, 64, generator=DRAW)
    assert whole is not None
    torch.testing.assert_close(whole(x), torch.cat([one(x), same(x)], -1))
    assert merged([one, other]) is None
    assert merged([packed(32, 64, 16), packed(32, 64, 32)]) is None
    assert merged([packed(32, 64), packed(32, 96)]) is None
    assert merged([packed(32, 64), packed(32, 64, bias=True)]) is None


def test_weight_is_answered_at_once_and_unpacked_when_used() -> None:
    layer = packed(32, 96)
    layer.dtype = torch.bfloat16
    weight = layer.weight
    assert (weight.dtype, weight.device, tuple(weight.shape)) == (torch.bfloat16, torch.device("cpu"), (32, 96))
    truth, x = layer.packed.dequantise(torch.bfloat16), torch.randn(4, 96, generator=DRAW).bfloat16()
    assert torch.equal(functional.linear(x, weight), functional.linear(x, truth))
    assert torch.equal(weight.float() + 1, truth.float() + 1)
    assert torch.equal(weight[3:5].t(), truth[3:5].t())
    assert x.to(weight.dtype).dtype == torch.bfloat16
    assert "weight" not in dict(layer.named_parameters())


@pytest.mark.parametrize("act", [None, 3])
@pytest.mark.skipif(cpu_layout.nibbles() is None, reason="torch's int4 layout is not known on this processor")
def test_processors_layout_in_place_of_the_common_one(act: int | None) -> None:
    layer = packed(32, 64, 32, act=act)
    before, x = layer.packed.dequantise(), torch.randn(3, 64, generator=DRAW).bfloat16()
    common, small = layer(x), layer.nbytes
    assert layer.prepare("cpu") is None
    assert layer.prepared
    assert layer.nbytes < 1.5 * small
    assert {"words", "scales", "zeros"}.isdisjoint(dict(layer.named_buffers()))
    for got, wanted in ((layer.dequantise(torch.float32), before), (layer(x), common), (layer.bound(x)(x), common)):
        assert float((got - wanted).float().norm() / wanted.float().norm()) < 0.02
    with pytest.raises(ValueError, match="processor's layout"):
        layer.packed  # noqa: B018
    (unit,) = survey([("layer", nn.Sequential(layer))])
    assert {slot.name for slot in unit.slots} >= {"0.codes", "0.scale_zero"}
    assert unit.left_out == ()
    assert merged([layer, layer]) is None


def test_layer_that_the_processors_layout_does_not_hold_stays() -> None:
    layer = packed(30, 64)
    why = layer.prepare("cpu")
    assert why is not None
    assert "30 rows" in why
    assert not layer.prepared
    assert packed(32, 64).prepare("triton") is None


def stack(experts: int, out: int, columns: int, *, transposed: bool = False, act: bool = False) -> QuantStack:
    layers = [packed(out, columns, 16, act=index if act else None).packed for index in range(experts)]
    orders = [layer.order for layer in layers]
    parts = (torch.stack([getattr(layer, name) for layer in layers]) for name in ("words", "scales", "zeros"))
    order = torch.stack([one for one in orders if one is not None]) if act else None
    return QuantStack(*parts, order, in_features=columns, group_size=16, transposed=transposed)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("act", [False, True])
def test_stack_is_the_parameter_that_it_stands_for(transposed: bool, act: bool) -> None:
    held = stack(3, 32, 64, transposed=transposed, act=act)
    truth = held.dequantise(torch.float32)
    assert truth.shape == held.shape == ((3, 64, 32) if transposed else (3, 32, 64))
    assert len(held) == 3
    assert torch.equal(held[1], truth[1])
    assert torch.equal(held[torch.tensor(2)], truth[2])
    assert torch.equal(held[torch.tensor([2, 0])], truth[[2, 0]])
    x = torch.randn(3, 4, held.shape[1], generator=DRAW)
    assert torch.equal(torch.bmm(x, held), torch.bmm(x, truth))
    assert torch.equal(held.transpose(1, 2), truth.transpose(1, 2)), "some models ask the parameter itself"
    with pytest.raises(AttributeError, match="weight"):
        _ = held.weight


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_row_meets_its_expert(rows: int, act: bool, dtype: torch.dtype) -> None:
    held = stack(4, 32, 64, act=act)
    x = torch.randn(rows, 64, generator=DRAW).to(dtype)
    experts = torch.randint(0, 4, (rows,), generator=DRAW).sort().values
    bias = torch.randn(4, 32, generator=DRAW)
    truth = held.dequantise(torch.float64)
    wanted = torch.stack([truth[e] @ one.double() + bias[e].double() for e, one in zip(experts.tolist(), x)])
    error = (held.linear(x, experts, bias).double() - wanted).norm() / wanted.norm()
    assert float(error) < {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]


class Experts(nn.Module):
    """As transformers' own: what its decorator says of a class stands on the instance."""

    has_bias = has_post_expert_norm = False

    def __init__(self, gate: bool, transposed: bool) -> None:
        super().__init__()
        self.has_gate, self.is_transposed = gate, transposed
        self.act_fn = nn.SiLU()

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return self.act_fn(gate) * up

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        raise AssertionError("the packed one computes")


@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_experts_compute_what_each_token_asked_for(tokens: int, gate: bool, transposed: bool) -> None:
    module: Any = Experts(gate, transposed)
    name = "gate_up_proj" if gate else "up_proj"
    module.add_module(name, stack(5, 96 if gate else 48, 64, transposed=transposed))
    module.add_module("down_proj", stack(5, 64, 48, transposed=transposed))
    pack_experts(module)
    pack_experts(module)  # twice is once
    assert type(module).__name__ == "Experts"
    x = torch.randn(tokens, 64, generator=DRAW)
    index = torch.stack([torch.randperm(5, generator=DRAW)[:2] for _ in range(tokens)])
    weights = torch.rand(tokens, 2, generator=DRAW)
    up, down = (getattr(module, part).dequantise(torch.float32) for part in (name, "down_proj"))
    up, down = (part.transpose(1, 2) if transposed else part for part in (up, down))
    wanted = torch.zeros(tokens, 64)
    for token in range(tokens):
        for expert, share in zip(index[token].tolist(), weights[token]):
            inner = up[expert] @ x[token]
            inner = module._apply_gate(inner) if gate else module.act_fn(inner)
            wanted[token] += share * (down[expert] @ inner)
    torch.testing.assert_close(module(x, index, weights), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(copy.deepcopy(module)(x, index, weights), wanted, rtol=1e-4, atol=1e-4)


def test_casts_leave_a_stack_as_it_is() -> None:
    held = stack(2, 32, 64)
    before = {name: tensor.dtype for name, tensor in held.named_buffers()}
    nn.Sequential(held).half()
    assert {name: tensor.dtype for name, tensor in held.named_buffers()} == before
    assert {tensor.device.type for tensor in held.to("meta").buffers()} == {"meta"}
