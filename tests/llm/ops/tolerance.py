"""How far a result may lie from the truth in float64: the one place where tolerances of ops stand.

    assert_close("rms_norm", y, truth)

16 bits are judged by roundings: each costs half a unit in the last place of what is rounded. float32, and what the
others compute in float32 inside, by 1e-5 of the sum of the absolute terms, however they are added up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32 = 1e-5
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 0.0}
"""Half a unit in the last place, relative; float32's is far below FLOAT32."""

SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133, torch.float32: 2.0**-149}
ROUNDINGS = {
    "w4a16": 3,  # of weights, result, bias
    "int4pack": 3,
    "expert_linear": 3,
    "linear": 2,  # of result, bias
    "rms_norm": 3,  # of the normed row, result, and the sum of weight and offset
    "fused_add_rms_norm": 3,
    "silu_and_mul": 2,  # of the activation, product
    "gelu_and_mul": 2,
    "rotary": 2,  # of a product, result
    "decode_attention": 3,  # of the shares, result, scales
}


@dataclass(frozen=True, eq=False)
class Truth:
    """A result in float64.

    Attributes:
        value: the result.
        rounded: what roundings to the dtype are relative to: |value|, or the sum of absolute terms where those are
            rounded.
        summed: the sum of the absolute terms, which float32 arithmetic is relative to.
    """

    value: Tensor
    rounded: Tensor
    summed: Tensor


def allowed(op: str, dtype: torch.dtype, truth: Truth) -> Tensor:
    """The largest error of each element."""
    return ROUNDINGS[op] * (UNIT[dtype] * truth.rounded + SMALLEST[dtype]) + FLOAT32 * truth.summed


def assert_close(op: str, result: Tensor, truth: Truth) -> None:
    """Raises AssertionError: an element is farther off than allowed, or the shape is another."""
    assert result.shape == truth.value.shape, f"{op}: {list(result.shape)} for {list(truth.value.shape)}"
    off = (result.double() - truth.value).abs()
    beyond = ~(off <= allowed(op, result.dtype, truth))
    if beyond.any():
        worst = (off / allowed(op, result.dtype, truth)).nan_to_num(torch.inf).argmax()
        got, want = result.flatten()[worst].item(), truth.value.flatten()[worst].item()
        raise AssertionError(f"{op} {result.dtype}: {int(beyond.sum())} of {off.numel()} off, worst {got} for {want}")
