"""Four-bit numbers in bytes and words: how nibbles are taken out, put in, and ordered for the kernels. Knows no weight.

Words are int32 whose bytes lie low first, as on every machine that torch runs on; a nibble is a uint8 of 0..15.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 128
"""Columns whose nibbles are shuffled among one another; rows are padded to whole blocks (64 bytes)."""


def split_words(words: Tensor) -> Tensor:
    """int32 [..., n] -> uint8 [..., 8n]: nibble j of word w, counted from the lowest, is element 8w + j."""
    flat = words.reshape(-1)  # a single column passes for contiguous whatever its stride, and so does a single word
    octets = (flat.clone(memory_format=torch.contiguous_format) if len(flat) == 1 else flat).view(torch.uint8)
    pairs = octets.to(torch.int16)  # whole passes: several times as fast as strided bytes
    return (pairs | pairs << 4).bitwise_and_(0x0F0F).view(torch.uint8).view(*words.shape[:-1], 8 * words.shape[-1])


def split_words_down(words: Tensor, places: Sequence[int] = range(8)) -> Tensor:
    """int32 [R, n] -> uint8 [8n, R]: nibble `places[j]` of the words in column w is row 8w + j."""
    columns = words.t().contiguous()
    return torch.stack([((columns >> 4 * place) & 15).to(torch.uint8) for place in places], 1).flatten(0, 1)


def to_blocks(codes: Tensor) -> Tensor:
    """uint8 [R, 128b] of 0..15 -> int32 [R, 16b] in the kernels' order.

    Within a block, nibble i (0..3) of word c holds column 32i + 2c, and nibble i + 4 the column after it: one shift and
    one mask give the two halves of a packed float16 pair that stands beside a pair of activations.
    """
    lanes = codes.contiguous().view(torch.int64).reshape(len(codes), codes.shape[1] // BLOCK, 4, 4)  # i, 8 columns
    octets = (lanes[:, :, 0::2] | lanes[:, :, 1::2] << 4).view(torch.uint8)  # [R, block, i // 2, 2c + half]
    words = octets.reshape(len(codes), -1, 2, 16, 2).permute(0, 1, 3, 4, 2)  # [R, block, c, half, i // 2]
    return words.reshape(len(codes), codes.shape[1] // 2).contiguous().view(torch.int32)


def from_blocks(words: Tensor) -> Tensor:
    """int32 [R, 16b] -> uint8 [R, 128b], the inverse of `to_blocks`."""
    octets = words.contiguous().view(torch.uint8).reshape(len(words), words.shape[1] // 16, 16, 2, 2)
    octets = octets.permute(0, 1, 4, 2, 3)  # [R, block, i // 2, c, half]
    return torch.stack((octets & 15, octets >> 4), 3).reshape(len(words), words.shape[1] * 8)
