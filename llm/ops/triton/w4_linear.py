"""w4a16 by Triton: one row by `w4_gemv`, 2 to 16 by `w4_small` or `w4_dot`, more by `dequantise` and a matrix product.

    y = run(x, words, scales, zeros, order, bias, in_features, group_size)

The layout is `Packed4`'s, read as it lies. Act-order costs a gather of x. Nothing here was run on a card.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.triton import arch, configs
from mmswap.llm.ops.triton.dequantise import dequantised
from mmswap.llm.ops.triton.launch import Launcher, aligned, power_of_two
from mmswap.llm.ops.triton.w4 import BLOCK, group_constants, together, unfit
from mmswap.llm.ops.triton.w4_dot import w4_dot
from mmswap.llm.ops.triton.w4_gemv import w4_gemv
from mmswap.llm.ops.triton.w4_small import w4_small

SMALL = 16
"""Input rows up to which codes are multiplied as they are."""

_PIECE = 64 << 20  # bytes of a weight that are unpacked at a time
_gemv, _small, _dot = Launcher(w4_gemv), Launcher(w4_small), Launcher(w4_dot)


def refuses(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    """Why not; None when `run` is right."""
    return unfit(x, words, scales, zeros, group_size)


def run(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """[..., in] -> [..., out]."""
    outputs, padded = words.shape[0], words.shape[1] * 8
    shape = (*x.shape[:-1], outputs)
    rows = x.numel() // in_features if in_features else 0
    if rows * outputs == 0:
        return x.new_zeros(shape)
    flat = x.reshape(rows, in_features)
    if order is not None:
        flat = flat.index_select(1, order)
    if rows > SMALL:
        return _many(flat, words, scales, zeros, bias, group_size).view(shape)
    y = x.new_empty(shape)
    flat = aligned(flat if flat.shape[1] % 2 == 0 else functional.pad(flat, (0, 1)))
    columns = flat.shape[1]
    found = arch.card(x.device)
    math = arch.pairs_math(found, x.dtype)
    group, span = group_constants(group_size, padded)
    how = (bias is not None, group, span, together(scales, zeros, group))
    last = (outputs, columns, padded // BLOCK, scales.shape[1])
    held = flat if bias is None else bias.contiguous()
    if rows == 1:
        config = configs.choose("w4_gemv", found, (outputs, padded, group))
        _gemv(
            (-(-outputs // config.rows), 1, 1),
            (flat, words, scales, zeros, held, y, *last),
            (*how, config.rows, config.columns, math),
            config.warps,
        )
        return y
    many = rows > configs.DOT_ABOVE[found.family] and group % 32 == 0
    config = configs.choose("w4_dot" if many else "w4_small", found, (outputs, padded, group, power_of_two(rows)))
    if config.inputs == SMALL:
        _dot(
            (-(-outputs // config.rows), 1, 1),
            (flat, words, scales, zeros, held, y, rows, flat.stride(0), *last),
            (bias is not None, group, span, config.rows, x.dtype == torch.bfloat16),
            config.warps,
        )
        return y
    inputs = min(config.inputs, power_of_two(rows))
    _small(
        (-(-rows // inputs), -(-outputs // config.rows), 1),
        (flat, words, scales, zeros, held, y, rows, flat.stride(0), *last),
        (*how, inputs, config.rows, config.columns, math),
        config.warps,
    )
    return y


def _many(x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, group_size: int) -> Tensor:
    """[rows, out]: the weight by pieces of 64 MiB. Scales that float16 cannot hold are computed with in float32."""
    dtype = torch.float32 if x.dtype == torch.float16 and scales.dtype != torch.float16 else x.dtype
    wide = x.to(dtype)

    def product(rows: slice) -> Tensor:
        weight = dequantised(words[rows], scales[rows], zeros[rows], group_size, dtype)[:, : x.shape[1]]
        return functional.linear(wide, weight, None if bias is None else bias[rows].to(dtype)).to(x.dtype)

    step = max(1, _PIECE // (words.shape[1] * 8 * dtype.itemsize))
    if step >= len(words):
        return product(slice(None))
    y = x.new_empty((len(x), len(words)))
    for start in range(0, len(words), step):
        y[:, start : start + step] = product(slice(start, start + step))
    return y
