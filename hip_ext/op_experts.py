"""expert_linear: the chosen experts' products for one token, over one stacked 4-bit weight. Meaning: `docs/ops.md`."""

from __future__ import annotations

import torch
from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import address, code, dense, oversized, scattered, start
from mmswap.hip_ext.op_linear import refuses_words
from mmswap.hip_ext.supply import kernels

_EXPERTS = STRUCTS["mms_experts"]
ROWS = 65535
"""Chosen experts: a block of the grid's second dimension each."""


def refuses(
    x: Tensor,
    experts: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    """Why not; None when `run` is right."""
    if experts.shape[0] > ROWS:
        return f"{experts.shape[0]} experts: it takes {ROWS}"
    apart = scattered(words=words, scales=scales, zeros=zeros, bias=bias)
    return refuses_words(x, words, group_size) or apart or oversized(words)


def run(
    x: Tensor,
    experts: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """[1, in] (shared) or [A, in] -> [A, out]."""
    out = x.new_empty((experts.shape[0], words.shape[1]))
    if out.numel():
        x, experts = dense(x), experts.contiguous()
        shared = x.shape[0] == 1
        arguments = _EXPERTS(
            x=x.data_ptr(), experts=experts.data_ptr(), words=words.data_ptr(), scales=scales.data_ptr(),
            zeros=zeros.data_ptr(), bias=address(bias), out=out.data_ptr(),
            x_stride=0 if shared else x.stride(0), rows=out.shape[0], outputs=out.shape[1], columns=in_features,
            padded=words.shape[2] * 8, group_size=group_size, groups=scales.shape[2], dtype=code(x),
            scale_dtype=code(scales), bias_dtype=code(bias), wide=experts.dtype == torch.int64,
        )  # fmt: skip
        needed = kernels(x.device).mms_experts_scratch(arguments)
        scratch = x.new_empty(needed, dtype=torch.uint8) if needed > 0 else None
        arguments.scratch = address(scratch)
        start("mms_experts_gemv", arguments, x.device)
    return out
