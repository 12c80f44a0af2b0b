"""The chosen experts' products for one token: each is a GEMV over its own slab of one int4 weight, in one start.

    y = run(x, experts, words, scales, zeros, bias, in_features, group_size)      # [A, out]

Which experts is read on the card: a captured graph follows the router. Nothing here was run on a card.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.triton import arch, configs
from mmswap.llm.ops.triton.launch import Launcher, aligned
from mmswap.llm.ops.triton.w4 import BLOCK, group_constants, row_sums, together, unfit


@triton.jit
def expert_gemv(
    x_ptr, experts_ptr, words_ptr, scales_ptr, zeros_ptr, bias_ptr, y_ptr, x_stride, outputs, columns, blocks, groups,
    BIAS: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr,
    BN: tl.constexpr, BW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """y[a, n] of the a-th chosen expert. One program: BN outputs of one expert."""
    a = tl.program_id(0)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    first = tl.load(experts_ptr + a).to(tl.int64) * outputs  # rows of the experts before it
    sums = row_sums(
        x_ptr + a * x_stride, words_ptr + first * (blocks * 16),
        scales_ptr + first * groups, zeros_ptr + first * groups,
        row, 0, 1, 0, columns, blocks, groups, GROUP, SPAN, TOGETHER, 1, BN, BW, MATH,
    )  # fmt: skip
    y = tl.sum(sums[0], axis=1)
    if BIAS:
        y += tl.load(bias_ptr + first + row).to(tl.float32)
    tl.store(y_ptr + a * outputs + n, y.to(y_ptr.dtype.element_ty), mask=n < outputs)


_expert_gemv = Launcher(expert_gemv)


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
    return unfit(x, words, scales, zeros, group_size)


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
    active, outputs, padded = experts.shape[0], words.shape[1], words.shape[2] * 8
    y = x.new_empty((active, outputs))
    if y.numel() == 0:
        return y
    x = aligned(x if in_features % 2 == 0 else functional.pad(x, (0, 1)))
    found = arch.card(x.device)
    group, span = group_constants(group_size, padded)
    config = configs.choose("expert_gemv", found, (outputs, padded, group))
    _expert_gemv(
        (active, -(-outputs // config.rows), 1),
        (
            x, experts.contiguous(), words, scales, zeros, x if bias is None else bias.contiguous(), y,
            0 if x.shape[0] == 1 else x.stride(0), outputs, x.shape[1], padded // BLOCK, scales.shape[2],
        ),
        (
            bias is not None, group, span, together(scales, zeros, group),
            config.rows, config.columns, arch.pairs_math(found, x.dtype),
        ),
        config.warps,
    )  # fmt: skip
    return y
