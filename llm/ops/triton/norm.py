"""rms_norm and fused_add_rms_norm by Triton: one program a row, float32 inside.

    y = run(x, weight, eps, offset, late);  y, total = run_fused(x, residual, weight, eps, offset, late)

Nothing here was run on a card.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.launch import Launcher, power_of_two, rows_of

LARGEST = 32768
"""Features of a row that are held at once."""


@triton.jit
def rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, total_ptr, x_stride, residual_stride, features, eps, offset,
    ADD: tl.constexpr, WEIGHT: tl.constexpr, LATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row. ADD: x + residual is rounded to their dtype, stored, and normed."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    there = i < features
    x = tl.load(x_ptr + row * x_stride + i, mask=there, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_stride + i, mask=there, other=0.0).to(tl.float32)
        total = x.to(x_ptr.dtype.element_ty)
        tl.store(total_ptr + row * features + i, total, mask=there)
        x = total.to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / features + eps)
    if WEIGHT:
        if LATE:
            y = y.to(x_ptr.dtype.element_ty).to(tl.float32)
        y *= tl.load(weight_ptr + i, mask=there, other=0.0).to(tl.float32) + offset
    tl.store(y_ptr + row * features + i, y.to(y_ptr.dtype.element_ty), mask=there)


_rms_norm = Launcher(rms_norm)


def refuses(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> str | None:
    """Why not; None when `run` is right."""
    return f"rows of {x.shape[-1]} features: it takes {LARGEST}" if x.shape[-1] > LARGEST else None


def refuses_fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> str | None:
    """Why not; None when `run_fused` is right."""
    return refuses(x, weight, eps, offset, late)


def run(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> Tensor:
    """[..., H] -> [..., H]."""
    y = x.new_empty(x.shape)
    _start(x, None, weight, y, y, eps, offset, late)
    return y


def run_fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> tuple[Tensor, Tensor]:
    """(normed sum, sum), both like x."""
    y, total = x.new_empty(x.shape), x.new_empty(x.shape)
    _start(x, residual, weight, y, total, eps, offset, late)
    return y, total


def _start(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    y: Tensor,
    total: Tensor,
    eps: float,
    offset: float,
    late: bool,
) -> None:
    if x.numel() == 0:
        return
    features = x.shape[-1]
    flat = rows_of(x)
    added = flat if residual is None else rows_of(residual)
    block = power_of_two(features)
    _rms_norm(
        (flat.shape[0], 1, 1),
        (
            flat, added, x if weight is None else weight.contiguous(), y, total,
            flat.stride(0), added.stride(0), features, eps, offset,
        ),
        (residual is not None, weight is not None, late, block),
        4 if block <= 2048 else 8 if block <= 8192 else 16,
    )  # fmt: skip
