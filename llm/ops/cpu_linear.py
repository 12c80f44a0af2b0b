"""Linear layers on the processor: int4 through torch's own kernel, and a matrix times a vector where that is faster.

Knows the processor's layout (`cpu_layout.py`), no checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.cpu_layout import arranged, dequantise

SOME_ROWS = 32
"""Rows up to which a bfloat16 weight is read as it lies."""

MANY_ROWS = 64
"""From here on one unpacking of the weight and a dense product cost less than torch's kernel, four rows at a time."""


def int4pack(
    x: Tensor,
    packed: Tensor,
    scale_zero: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """One row to some: the weight is read as it is, sums are float32. Many: it is unpacked once, to bfloat16."""
    k = packed.shape[1] * 2
    flat = x if x.dim() == 2 else x.reshape(-1, in_features)
    if order is not None or k != in_features:
        flat = arranged(flat, order, k)
    if flat.shape[0] < MANY_ROWS or not _dense_is_fast():
        y = torch._weight_int4pack_mm_for_cpu(flat.contiguous(), packed, group_size, scale_zero)
        if bias is not None:
            y = y.add_(bias)
    else:
        weight = dequantise(packed, scale_zero, group_size, x.dtype)
        y = functional.linear(flat, weight, None if bias is None else bias.to(x.dtype))
    return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def _refuses_int4pack(
    x: Tensor,
    packed: Tensor,
    scale_zero: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    if x.dtype != torch.bfloat16:
        return f"torch's int4 kernel is fast for bfloat16 alone, and x is {_name(x)}"
    if not (packed.is_contiguous() and scale_zero.is_contiguous()):
        return "the weight is not contiguous"
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One row: the matrix times a vector. Some: W x^T, for which W is read as it lies; for x W^T torch repacks it."""
    out = weight.shape[0]
    if x.numel() == x.shape[-1]:
        row = x.view(-1)
        return (torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)).view(*x.shape[:-1], out)
    columns = x.view(-1, x.shape[-1]).t()
    y = torch.mm(weight, columns) if bias is None else torch.addmm(bias.unsqueeze(1), weight, columns)
    return y.t().contiguous().view(*x.shape[:-1], out)


def _refuses_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    if x.dtype != torch.bfloat16:
        return f"F.linear is as fast for {_name(x)}"
    if not 0 < x.numel() <= SOME_ROWS * x.shape[-1]:
        return f"F.linear is as fast but for 1 to {SOME_ROWS} rows"
    if not (x.is_contiguous() and weight.is_contiguous()):
        return "a tensor is not contiguous"
    return None


def _dense_is_fast() -> bool:
    """Elsewhere a bfloat16 product is computed by way of float32, and the int4 kernel stays ahead."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


IMPLEMENTATIONS = {
    "int4pack": Implementation(int4pack, _refuses_int4pack),
    "linear": Implementation(linear, _refuses_linear),
}
