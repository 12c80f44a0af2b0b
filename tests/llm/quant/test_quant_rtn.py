"""Round to nearest: never further off than half a step, SQNR as measured, zeros exact, odd groups and dtypes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmswap.errors import ModelError, OptionError
from mmswap.llm.quant import quantise, sqnr_db

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def drawn(out: int = 48, columns: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randn(out, columns, generator=torch.Generator().manual_seed(seed)) * 0.02


def measured(weight: torch.Tensor, rounded: torch.Tensor) -> float:
    """dB by the definition, in float64."""
    signal, error = weight.double(), rounded.double() - weight.double()
    return 10 * math.log10(float(signal.square().sum() / error.square().sum()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_sqnr_is_that_of_the_packed_weight(dtype: torch.dtype, symmetric: bool) -> None:
    weight = drawn().to(dtype)
    rounded = quantise(weight, symmetric=symmetric)
    assert rounded.packed.group_size == 128
    assert rounded.sqnr_db == pytest.approx(measured(weight, rounded.packed.dequantise(torch.float64)), abs=0.01)
    assert 18 < rounded.sqnr_db < 24


def test_asymmetric_is_better_on_weights_that_lean() -> None:
    weight = drawn() + 0.03
    assert quantise(weight).sqnr_db > quantise(weight, symmetric=True).sqnr_db + 3


def test_smaller_groups_are_closer() -> None:
    found = [quantise(drawn(), group_size=size).sqnr_db for size in (-1, 128, 32)]
    assert found == sorted(found)
    assert found[0] < found[2] - 1


@settings(max_examples=60, deadline=None)
@given(
    out=st.integers(1, 9),
    columns=st.integers(1, 300),
    group=st.sampled_from([-1, 1, 5, 32, 128, 500]),
    symmetric=st.booleans(),
    shift=st.floats(-3, 3),
    magnitude=st.sampled_from([1e-7, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_no_value_is_off_by_more_than_half_a_step(
    out: int, columns: int, group: int, symmetric: bool, shift: float, magnitude: float, seed: int
) -> None:
    weight = (torch.randn(out, columns, generator=torch.Generator().manual_seed(seed)) + shift) * magnitude
    packed = quantise(weight, group_size=group, symmetric=symmetric).packed
    steps = packed.scales.float().repeat_interleave(packed.group_size, 1)[:, :columns]
    error = (packed.dequantise() - weight).abs()
    # A scale is rounded to 8 bits or more: at the ends, 8 or 15 steps away from zero, that moves a value a little.
    assert bool((error <= steps * (0.5 + 15 / 256)).all())


def test_symmetric_has_its_zero_in_the_middle() -> None:
    packed = quantise(drawn(), symmetric=True).packed
    assert bool((packed.zeros == 8).all())


def test_greatest_values_are_not_cut() -> None:
    weight = torch.zeros(2, 128)
    weight[0, 0], weight[0, 1], weight[1, 0] = -8.0, 6.0, 7.0
    packed = quantise(weight, symmetric=True).packed
    assert torch.equal(packed.dequantise(), weight)


def test_zeros_stay_zeros() -> None:
    weight = drawn()
    weight[:, ::3] = 0
    weight[5] = 0
    for symmetric in (False, True):
        got = quantise(weight, symmetric=symmetric).packed.dequantise()
        assert bool((got[:, ::3] == 0).all())
        assert bool((got[5] == 0).all())
    weight[7] = 1e-44  # a scale of it would be 0
    assert bool((quantise(weight).packed.dequantise()[7] == 0).all())
    nothing = quantise(torch.zeros(3, 70))
    assert (nothing.signal, nothing.noise, nothing.sqnr_db) == (0.0, 0.0, math.inf)


@pytest.mark.parametrize(("magnitude", "dtype"), [(1.0, torch.float16), (1e-8, torch.bfloat16), (1e9, torch.bfloat16)])
def test_scales_that_float16_would_lose(magnitude: float, dtype: torch.dtype) -> None:
    weight = drawn() * magnitude
    rounded = quantise(weight)
    assert rounded.packed.scales.dtype == dtype
    wanted = measured(weight, rounded.packed.dequantise())
    assert wanted > 19
    assert rounded.sqnr_db == pytest.approx(wanted, abs=1e-4), "measured against the scales as they are stored"


def test_weight_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantise(drawn(50, 200))
    monkeypatch.setattr("mmswap.llm.quant.rtn._PIECE", 1500)  # seven rows at a time
    parts = quantise(drawn(50, 200))
    assert torch.equal(parts.packed.words, whole.packed.words)
    assert parts.sqnr_db == pytest.approx(whole.sqnr_db, abs=1e-6)


def test_decibels_of_several_weights() -> None:
    assert sqnr_db(100.0, 1.0) == 20.0
    assert sqnr_db(1.0, 0.0) == math.inf
    assert sqnr_db(0.0, 1.0) == -math.inf


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weight_that_is_not_finite(bad: float) -> None:
    weight = drawn()
    weight[1, 2] = bad
    with pytest.raises(ModelError, match="not finite"):
        quantise(weight)


@pytest.mark.parametrize("weight", [torch.zeros(3), torch.zeros(2, 3, 4), torch.zeros(0, 4), torch.zeros(2, 2).int()])
def test_no_weight(weight: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="float matrix"):
        quantise(weight)


@pytest.mark.parametrize("size", [0, -2])
def test_no_group(size: int) -> None:
    with pytest.raises(OptionError, match=f"a group of {size}"):
        quantise(drawn(), group_size=size)
