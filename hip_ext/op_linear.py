"""linear and w4a16 for few rows; many are worth a plain matrix product, and are refused. Meaning: `docs/ops.md`."""

from __future__ import annotations

import torch
from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import address, code, oversized, rows_of, scattered, start, strided
from mmswap.hip_ext.supply import kernels

_LINEAR, _W4 = STRUCTS["mms_linear"], STRUCTS["mms_w4"]
GEMV_ROWS = 4
"""Rows that one pass over the weight serves without matrix instructions."""

GEMM_ROWS = 64
"""Rows beyond which a 4-bit weight is better made plain once and multiplied by torch."""

COLUMNS = 1 << 20
"""Of a 4-bit weight."""

_GROUPS = 16
_HALVES = (torch.float16, torch.bfloat16)


def refuses_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why not; None when `linear` is right."""
    if x.dtype not in _HALVES:
        return f"it takes float16 and bfloat16, not {str(x.dtype)[6:]}"
    if _rows(x) > GEMV_ROWS:
        return f"{_rows(x)} rows: it takes {GEMV_ROWS}"
    return strided("weight", weight) or oversized(weight)


def refuses_w4a16(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    """Why not; None when `w4a16` is right."""
    if _rows(x) > GEMM_ROWS:
        return f"{_rows(x)} rows: it takes {GEMM_ROWS}"
    apart = scattered(words=words, scales=scales, zeros=zeros, order=order, bias=bias)
    return refuses_words(x, words, group_size) or apart or oversized(words)


def refuses_words(x: Tensor, words: Tensor, group_size: int) -> str | None:
    """Why a weight in 4 bits does not fit, its rows in the last dimension of `words`; None when it does."""
    if x.dtype not in _HALVES:
        return f"it takes float16 and bfloat16, not {str(x.dtype)[6:]}"
    padded = words.shape[-1] * 8
    if group_size % _GROUPS and group_size < padded:
        return f"groups of {group_size} columns are no multiple of {_GROUPS}"
    if padded > COLUMNS:
        return f"{padded} columns: it takes {COLUMNS}"
    if words.data_ptr() % 16:
        return "words do not begin at a multiple of 16 bytes"
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[..., in] -> [..., out]."""
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if out.numel():
        rows = rows_of(x)
        bias = None if bias is None else bias.contiguous()
        arguments = _LINEAR(
            x=rows.data_ptr(), weight=weight.data_ptr(), bias=address(bias), out=out.data_ptr(),
            x_stride=rows.stride(0), weight_stride=weight.stride(0), rows=rows.shape[0], outputs=weight.shape[0],
            columns=weight.shape[1], dtype=code(x), bias_dtype=code(bias),
        )  # fmt: skip
        start("mms_linear_gemv", arguments, x.device)
    return out


def w4a16(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """[..., in] -> [..., out], W a `Packed4`."""
    out = x.new_empty((*x.shape[:-1], words.shape[0]))
    if out.numel():
        rows = rows_of(x)
        arguments = _W4(
            x=rows.data_ptr(), words=words.data_ptr(), scales=scales.data_ptr(), zeros=zeros.data_ptr(),
            order=address(order), bias=address(bias), out=out.data_ptr(), x_stride=rows.stride(0), rows=rows.shape[0],
            outputs=words.shape[0], columns=in_features, slots=in_features if order is None else order.shape[0],
            padded=words.shape[1] * 8, group_size=group_size, groups=scales.shape[1], dtype=code(x),
            scale_dtype=code(scales), bias_dtype=code(bias),
        )  # fmt: skip
        needed = kernels(x.device).mms_w4_scratch(arguments)
        scratch = x.new_empty(needed, dtype=torch.uint8) if needed > 0 else None
        arguments.scratch = address(scratch)
        start("mms_w4_gemv" if rows.shape[0] <= GEMV_ROWS else "mms_w4_gemm", arguments, x.device)
    return out


def _rows(x: Tensor) -> int:
    return x.numel() // max(x.shape[-1], 1)
