"""The quantised layer: values, dtypes that stay, and a swap unit that carries it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from stored_layers import compressed, gptq
from torch import nn

from mmswap.llm.quant import QuantLinear, pack, quantise, read, which
from mmswap.swap.unit import survey


def layer(*, act: bool = False, tiny: bool = False, bias: bool = True) -> QuantLinear:
    made = compressed(160, 24, 32, magnitude=2e-8) if tiny else gptq(160, 24, 32, act=act, bias=bias)
    (stored,) = which(made.config, made.named).packed.values()
    return QuantLinear(*read(stored, made.named))


@pytest.mark.parametrize("shape", [(160,), (1, 160), (2, 7, 160), (0, 160)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_leading_shape_in_the_dtype_of_the_input(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    module = layer(act=True)
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    got = module(x)
    assert (got.shape, got.dtype) == ((*shape[:-1], 24), dtype)
    assert module.bias is not None
    wanted = x.double() @ module.packed.dequantise(torch.float64).T + module.bias.double()
    assert torch.allclose(got.double(), wanted, rtol=1e-2, atol=2e-2)


def test_float16_does_not_lose_scales_below_its_range() -> None:
    """bf16 scales near 2e-8 are 0 in float16 (a checkpoint run in the dtype that AWQ forces gave nothing but zeros)."""
    module = layer(tiny=True)
    x = torch.full((1, 160), 1000.0).half()
    wanted = x.double() @ module.packed.dequantise(torch.float64).T
    assert torch.allclose(module(x).double(), wanted, rtol=2e-2, atol=1e-7)
    assert float(wanted.abs().max()) > 1e-5


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.double, nn.Module.bfloat16])
def test_casts_leave_the_weight_as_it_is(cast: object) -> None:
    module = layer(tiny=True)
    before = {name: tensor.clone() for name, tensor in module.packed.tensors()}
    cast(nn.Sequential(module))  # type: ignore[operator]
    for name, tensor in module.packed.tensors():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])
    module.type(torch.float16)
    assert module.words.dtype == torch.int32


def test_bias_follows_casts_and_the_device_moves_all() -> None:
    module = layer(act=True).float()
    assert module.bias is not None
    assert module.bias.dtype == torch.float32
    assert not module.bias.requires_grad
    moved = module.to("meta")
    assert {tensor.device.type for tensor in (*moved.buffers(), *moved.parameters())} == {"meta"}
    assert len(list(moved.buffers())) == 4


def test_state_goes_through_a_state_dict_and_a_copy() -> None:
    module, other = layer(act=True), layer(act=True)
    x = torch.randn(3, 160)
    with torch.no_grad():
        other.words.zero_()
        other.scales.zero_()
    assert not torch.equal(other(x), module(x))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    assert torch.equal(copy.deepcopy(module)(x), module(x))


@pytest.mark.parametrize("act", [False, True])
def test_swap_unit_mirrors_it_as_it_lies(act: bool) -> None:
    module = layer(act=act)
    x = torch.randn(5, 160)
    wanted = module(x)
    (unit,) = survey([("layer", nn.Sequential(module))])
    assert unit.left_out == ()
    assert {slot.name for slot in unit.slots} >= {"0.words", "0.scales", "0.zeros", "0.bias"}
    assert len(unit.slots) == 4 + act
    mirror = torch.zeros(unit.nbytes, dtype=torch.uint8)
    unit.gather(mirror)
    slab = torch.zeros_like(mirror)
    unit.settle_in(slab)
    unit.unbind()
    with pytest.raises(ValueError, match=r"shape \[0\]"):
        module(x)
    slab.copy_(mirror)
    unit.bind()
    unit.check()
    assert torch.equal(module(x), wanted)


def test_rounded_layer_is_close_to_the_plain_one() -> None:
    plain = nn.Linear(200, 40).requires_grad_(False)
    module = QuantLinear(quantise(plain.weight, group_size=32).packed, plain.bias)
    x = torch.randn(64, 200)
    error = (module(x) - plain(x)).double()
    assert float(error.square().sum()) < 0.01 * float(plain(x).double().square().sum())


def test_description() -> None:
    assert repr(layer(act=True)).startswith("QuantLinear(in_features=160, out_features=24, bias=True, bits=4")
    assert "act_order=True" in repr(layer(act=True))


def test_bias_of_another_layer() -> None:
    packed = pack(torch.from_numpy(np.zeros((4, 8), np.uint8)), torch.ones(4, 1), group_size=-1)
    with pytest.raises(ValueError, match="bias"):
        QuantLinear(packed, torch.zeros(5))
