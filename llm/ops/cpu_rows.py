"""Norms, activations and rotary positions on the processor. Knows no cache and no weight matrix.

With one row its norm is a number that Python holds: `x * number` is one call, which rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops import reference
from mmswap.llm.ops.backends import Implementation

_norm = torch.linalg.vector_norm


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> Tensor:
    """As the reference, but that an early weight is applied after a rounding of its own."""
    width = x.shape[-1]
    if x.numel() == width:
        length = _norm(x, dtype=torch.float32).item()
        normed = x * (1.0 / math.sqrt(length * length / width + eps))
    else:
        wide = x.float()
        inverse = _norm(wide, 2, -1, True).square_().mul_(1.0 / width).add_(eps).rsqrt_()
        normed = (wide * inverse if wide is x else wide.mul_(inverse)).to(x.dtype)
    if weight is None:
        return normed
    return (
        normed.mul_(weight)
        if offset == 0
        else torch.addcmul(normed * offset if offset != 1 else normed, normed, weight)
    )


def _refuses_rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> str | None:
    if weight is not None and weight.dtype != x.dtype:
        return "the weight has another dtype than x"
    if offset not in (0.0, 1.0):
        return "it adds 0 or 1 to the weight"
    if not eps > 0:
        return "without eps a row of zeros has no norm"
    return None if x.numel() else "there is no row"


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> tuple[Tensor, Tensor]:
    """The sum, then its norm."""
    total = x + residual
    return rms_norm(total, weight, eps, offset, late), total


def _refuses_fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> str | None:
    return _refuses_rms_norm(x, weight, eps, offset, late)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Two roundings where the reference has one."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """Two roundings where the reference has one."""
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate, approximate=approximate).mul_(up)


def _refuses_act(gate_up: Tensor, approximate: str = "none") -> str | None:
    return None if gate_up.numel() else "there is no row"


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> tuple[Tensor, Tensor]:
    """x cos + (x with its halves exchanged) (sin with its first half negated); q and k at once."""
    if sections:
        cos, sin = reference.of_axes(cos, sections), reference.of_axes(sin, sections)
    heads, width = q.shape[1], cos.shape[-1]
    sin = sin * _signs(width // 2, sin.dtype)
    if cos.shape[0] != 1:  # else [1, T, R] stands beside [heads, T, R] as it is
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    both = torch.cat((q, k), 1)
    turning = both if width == both.shape[-1] else both[..., :width]
    exchanged = turning.roll(width // 2, -1)
    turning.mul_(cos).addcmul_(exchanged, sin)
    return both[:, :heads].contiguous(), both[:, heads:].clone()  # two results may not share their memory


def _refuses_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> str | None:
    if cos.dtype != q.dtype or sin.dtype != q.dtype:
        return "the angles have another dtype than q"
    return None if q.numel() and k.numel() and cos.numel() else "nothing turns"


@cache
def _signs(half: int, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.cat((-torch.ones(half, dtype=dtype), torch.ones(half, dtype=dtype)))


_TABLE: dict[str, tuple[Callable[..., Any], Callable[..., str | None]]] = {
    "rms_norm": (rms_norm, _refuses_rms_norm),
    "fused_add_rms_norm": (fused_add_rms_norm, _refuses_fused),
    "silu_and_mul": (silu_and_mul, _refuses_act),
    "gelu_and_mul": (gelu_and_mul, _refuses_act),
    "rotary": (rotary, _refuses_rotary),
}
IMPLEMENTATIONS = {name: Implementation(*pair) for name, pair in _TABLE.items()}
