"""int4 weights in the common layout (`Packed4`), on the processor: unpacked some rows at a time, and used at once.

For float16 and float32, whose precision torch's int4 kernel lacks, and for experts. A piece stays in the core's cache,
so a weight is read once, in 4 bits. Knows no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.schema import BLOCK

FEW = 16
"""Rows up to which 16 bits are computed in float32, piece by piece; more are worth a whole weight in their dtype."""

_PIECE = 1 << 17  # weights, 512 KiB of float32
_PAIR = 0x000F000F  # two neighbouring columns of a word, each in 16 bits


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
    """Weights are float32, never rounded, but for many rows of 16 bits."""
    flat = x.reshape(-1, in_features)
    columns = in_features if order is None else order.shape[0]
    flat = flat if order is None else flat.index_select(-1, order)
    pieces = _unpacked(words, scales, zeros, group_size)
    narrow = x.dtype == torch.float16 and scales.dtype != torch.float16
    if x.dtype == torch.float32 or len(flat) <= FEW or narrow:
        y = _product(flat.float(), words.shape[0], columns, pieces)
        y = y if bias is None else y.add_(bias)
    else:
        weight = torch.empty(words.shape[0], columns, dtype=x.dtype)
        for rows, piece in pieces:
            weight[rows] = piece[:, :columns]
        y = functional.linear(flat, weight, None if bias is None else bias.to(x.dtype))
    return y.to(x.dtype).view(*x.shape[:-1], words.shape[0])


def expert_linear(
    x: Tensor,
    experts: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """Expert by expert."""
    wide, y = x.float(), torch.empty(experts.shape[0], words.shape[1])
    for row, expert in enumerate(experts.tolist()):
        own = wide[row : row + 1] if len(wide) > 1 else wide
        pieces = _unpacked(words[expert], scales[expert], zeros[expert], group_size)
        y[row] = _product(own, words.shape[1], in_features, pieces)[0]
    y = y if bias is None else y.add_(bias.index_select(0, experts))
    return y.to(x.dtype)


def _product(x: Tensor, out: int, columns: int, pieces: Iterator[tuple[slice, Tensor]]) -> Tensor:
    """float32 [M, columns] times the weight: [M, out]."""
    y = torch.empty(len(x), out)
    for rows, piece in pieces:
        weight = piece[:, :columns]
        if len(x) == 1:
            torch.mv(weight, x[0], out=y[0, rows])
        else:
            torch.mm(x, weight.t(), out=y[:, rows])
    return y


def _unpacked(words: Tensor, scales: Tensor, zeros: Tensor, group_size: int) -> Iterator[tuple[slice, Tensor]]:
    """Rows of the weight, and they as float32 [rows, padded], in a tensor that the next piece is written over."""
    out, padded = words.shape[0], words.shape[1] * 8
    step = max(1, min(out, _PIECE // padded))
    lanes = torch.empty(step, padded // BLOCK, 4, BLOCK // 8, dtype=torch.int32)  # nibble i and i + 4 of each word
    numbers = torch.empty(step, padded // group_size, group_size)
    blocks = words.view(out, padded // BLOCK, BLOCK // 8)
    scales, zeros = scales.float().unsqueeze(-1), zeros.to(torch.int16).unsqueeze(-1)
    for start in range(0, out, step):
        rows = slice(start, min(start + step, out))
        count = rows.stop - start
        for nibble in range(4):
            torch.bitwise_right_shift(blocks[rows], 4 * nibble, out=lanes[:count, :, nibble])
        codes = lanes[:count].bitwise_and_(_PAIR).view(torch.int16).view(count, -1, group_size)
        piece = numbers[:count].copy_(codes.sub_(zeros[rows])).mul_(scales[rows])
        yield rows, piece.view(count, padded)


def _refuses_w4a16(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    return _refuses(words, group_size)


def _refuses_expert_linear(
    x: Tensor,
    experts: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> str | None:
    return _refuses(words, group_size)


def _refuses(words: Tensor, group_size: int) -> str | None:
    if not words.is_contiguous():
        return "the weight is not contiguous"
    if words.shape[-1] * 8 % group_size:
        return f"groups of {group_size} columns do not divide a row of {words.shape[-1] * 8}"
    return None


IMPLEMENTATIONS = {
    "w4a16": Implementation(w4a16, _refuses_w4a16),
    "expert_linear": Implementation(expert_linear, _refuses_expert_linear),
}
