"""An int4 weight as 16- or 32-bit numbers, for products with many input rows.

weight = dequantised(words, scales, zeros, group_size, torch.float16)      # [out, padded]; columns in slot order
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton import arch, configs
from mmswap.llm.ops.triton.launch import Launcher
from mmswap.llm.ops.triton.w4 import group_constants, group_index


@triton.jit
def dequantise(
    words_ptr, scales_ptr, zeros_ptr, weight_ptr, outputs, blocks, groups,
    GROUP: tl.constexpr, SPAN: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """One program: BN rows, BW words of each. Two columns are stored as one number."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    c = tl.program_id(0) * BW + tl.arange(0, BW)
    block, place = c // 16, c % 16
    there = (block < blocks)[None, :]
    w = tl.load(words_ptr + (row * (blocks * 16))[:, None] + c[None, :], mask=there, other=0)
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    half: tl.constexpr = tl.uint16 if dtype.primitive_bitwidth == 16 else tl.uint32
    both: tl.constexpr = tl.int32 if dtype.primitive_bitwidth == 16 else tl.int64
    weight = weight_ptr.to(tl.pointer_type(both), bitcast=True)
    weight += row.to(tl.int64)[:, None] * (blocks * 64) + (block * 64 + place)[None, :]
    for part in tl.static_range(4 // SPAN):
        group = group_index(block, place, part, SPAN, GROUP)[None, :]
        s = tl.load(scales_ptr + (row * groups)[:, None] + group, mask=there, other=0.0).to(tl.float32)
        z = tl.load(zeros_ptr + (row * groups)[:, None] + group, mask=there, other=0).to(tl.int32)
        for i in tl.static_range(SPAN):
            first = (((w >> (4 * (SPAN * part + i))) & 15) - z).to(tl.float32) * s
            second = (((w >> (4 * (SPAN * part + i) + 16)) & 15) - z).to(tl.float32) * s
            low = first.to(dtype).to(half, bitcast=True).to(both)
            high = second.to(dtype).to(half, bitcast=True).to(both)
            pair = low | (high << dtype.primitive_bitwidth)
            tl.store(weight + 16 * (SPAN * part + i), pair, mask=there & (n < outputs)[:, None])


_dequantise = Launcher(dequantise)


def dequantised(words: Tensor, scales: Tensor, zeros: Tensor, group_size: int, dtype: torch.dtype) -> Tensor:
    """[out, padded] in `dtype`, rounded once from float32. What no column needs is 0."""
    outputs, padded = words.shape[0], words.shape[1] * 8
    weight = torch.empty(outputs, padded, dtype=dtype, device=words.device)
    found = arch.card(words.device)
    config = configs.choose("dequantise", found, (outputs, padded, group_size))
    _dequantise(
        (-(-words.shape[1] // config.columns), -(-outputs // config.rows), 1),
        (words, scales, zeros, weight, outputs, padded // 128, scales.shape[1]),
        (*group_constants(group_size, padded), config.rows, config.columns),
        config.warps,
    )
    return weight
