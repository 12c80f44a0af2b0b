"""Every stored format is read exactly (cases D1, D2, D4, D8): zero points, nibbles, group maps, padding, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_layers import NAME, Layer, awq, compressed, gptq

from mmswap.llm.quant import Packed4, QuantLinear, read, which

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

LAYERS = {
    "gptq v1: 7 stored means 8": gptq(symmetric=True),
    "gptq v1: zero points less one": gptq(),
    "gptq without checkpoint_format is v1": gptq(form=None),
    "gptq v2: 8 stored means 8": gptq(symmetric=True, form="gptq_v2"),
    "gptq v2: zero points as they are": gptq(form="gptq_v2"),
    "gptq act-order: every input has its own group": gptq(act=True),
    "gptq act-order, last group short": gptq(72, 24, 32, act=True),
    "gptq act-order over several blocks": gptq(384, 40, 64, act=True, form="gptq_v2"),
    "gptq without g_idx: groups are consecutive": gptq(index=False),
    "gptq group -1": gptq(group=-1),
    "gptq group -1 with act-order": gptq(group=-1, act=True),
    "gptq with a bias": gptq(bias=True),
    "gptq, inputs no multiple of the group": gptq(200, 24, 128),
    "gptq, inputs no multiple of a block": gptq(328, 8, 64),
    "gptq, one word of inputs": gptq(7, 9, 8, act=True),
    "gptq, outputs no multiple of 8": gptq(64, 13, 16),
    "gptq, fewer inputs than the group": gptq(40, 8, 128),
    "awq: interleaved outputs": awq(),
    "awq group -1": awq(group=-1),
    "awq, odd inputs": awq(201, 16, 128),
    "awq, several blocks": awq(384, 48, 32),
    "compressed symmetric": compressed(),
    "compressed, one scale a row": compressed(group=-1),
    "compressed asymmetric: zero points packed along outputs": compressed(symmetric=False),
    "compressed asymmetric, one scale a row": compressed(group=-1, symmetric=False),
    "compressed asymmetric, zero points not packed": compressed(symmetric=False, unpacked_zeros=True),
    "compressed act-order": compressed(act=True),
    "compressed asymmetric act-order": compressed(160, 20, 32, act=True, symmetric=False),
    "compressed, 36 outputs": compressed(outputs=36, symmetric=False),
    "compressed, 5 outputs, 77 inputs": compressed(77, 5, 16, symmetric=False),
    "compressed, groups of 48": compressed(200, 7, 48, symmetric=False),
    "compressed, scales near 2e-8": compressed(magnitude=2e-8),
    **{f"gptq {dtype}": gptq(dtype=dtype, act=True) for dtype in DTYPES},
    **{f"awq {dtype}": awq(dtype=dtype) for dtype in DTYPES},
    **{f"compressed {dtype}": compressed(dtype=dtype, symmetric=False) for dtype in DTYPES},
}


def packed(layer: Layer) -> tuple[Packed4, torch.Tensor | None]:
    """By the public way: the names say what is packed, the tensors give it."""
    return read(which(layer.config, layer.named).packed[NAME], layer.named)


def assert_exact(layer: Layer) -> Packed4:
    found, _ = packed(layer)
    assert np.array_equal(found.dequantise(torch.float64).numpy(), layer.weight)
    return found


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_weight_is_that_of_the_file(layer: Layer) -> None:
    found = assert_exact(layer)
    assert (found.out_features, found.in_features) == layer.weight.shape
    assert found.scales.dtype == layer.tensors.get("scales", layer.tensors.get("weight_scale")).dtype


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize("dtype", DTYPES)
def test_product_is_that_of_the_file(layer: Layer, dtype: torch.dtype) -> None:
    found, bias = packed(layer)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(4, found.in_features))).to(dtype)
    wanted = x.double() @ torch.from_numpy(layer.weight).T
    wanted = wanted if bias is None else wanted + bias.double()
    got = QuantLinear(found, bias)(x)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert float((got.double() - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


def test_zero_point_of_0_in_the_first_gptq_format() -> None:
    """Less one, it was stored as 15; read as 16 it would be off by the whole range."""
    layer = gptq()
    assert bool(torch.any((layer.tensors["qzeros"] & 15) == 15)), "the layer must have one"
    assert_exact(layer)


@pytest.mark.parametrize(("form", "stored"), [("gptq", 0x88888888), ("gptq_v2", 0x77777777)])
def test_symmetric_zero_points_of_the_other_format(form: str, stored: int) -> None:
    """A config that names the wrong format: symmetric zero points are 8 and can be nothing else."""
    layer = gptq(symmetric=True, form=form)
    layer.tensors["qzeros"].fill_(stored - (1 << 32) if stored >> 31 else stored)
    assert_exact(layer)


def test_unused_group_index_of_compressed_tensors() -> None:
    layer = compressed()
    layer.tensors["weight_g_idx"] = torch.full((64,), -1, dtype=torch.int32)
    assert assert_exact(layer).order is None


def test_consecutive_group_index_needs_no_order() -> None:
    assert assert_exact(gptq()).order is None


def test_groups_of_unequal_size() -> None:
    """A g_idx that is no permutation of equal groups: 40 inputs in one group of 16, none in another."""
    layer = gptq(64, 16, 16)
    groups = np.array([0] * 40 + [3] * 20 + [1] * 4)
    layer.tensors["g_idx"] = torch.from_numpy(groups)
    scales = layer.tensors["scales"].double().numpy()[groups]
    stored = layer.tensors["qzeros"].numpy().view(np.uint32)
    points = np.stack([((stored[:, o // 8] >> (4 * (o % 8))) + 1) & 15 for o in range(16)], 1).astype(int)[groups]
    layer.weight = (scales * (layer.codes - points)).T
    found = assert_exact(layer)
    assert found.order is not None
    assert found.slots == 3 * 16 + 16 + 20


def test_group_size_is_told_by_the_scales_where_the_config_is_silent() -> None:
    for layer in (gptq(), gptq(group=-1), awq()):
        layer.section.pop("group_size")
        assert_exact(layer)


def test_early_awq_config() -> None:
    layer = awq()
    layer.section = {"zero_point": True, "q_group_size": 16, "w_bit": 4, "version": "GEMM"}
    assert_exact(layer)


def test_scales_of_one_number_and_of_one_a_row_without_a_second_dimension() -> None:
    layer = compressed(group=-1)
    layer.tensors["weight_scale"] = layer.tensors["weight_scale"].flatten()
    assert_exact(layer)
    layer.tensors["weight_scale"] = torch.tensor([0.5], dtype=torch.bfloat16)
    layer.weight = (layer.codes.T - 8) * 0.5
    layer.section["config_groups"]["group_0"]["weights"]["strategy"] = "tensor"
    assert_exact(layer)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["gptq", "gptq_v2", "awq", "compressed"]),
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 40),
    group=st.sampled_from([-1, 1, 3, 8, 16, 32, 48, 64, 128, 256]),
    act=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(kind: str, inputs: int, outputs: int, group: int, act: bool, seed: int) -> None:
    if kind == "awq":
        layer = awq(inputs, -(-outputs // 8) * 8, group, seed=seed)
    elif kind == "compressed":
        layer = compressed(inputs, outputs, group, symmetric=bool(seed % 2), act=act, seed=seed)
    else:
        layer = gptq(inputs, outputs, group, form=kind, act=act, seed=seed)
    assert_exact(layer)
