"""Rows of an int4 weight times activations: the loop of the GEMV, of its form for few rows, and of the experts'.

A program takes BN weight rows, BW words of each at a time, and M input rows. Tensors have two dimensions and one
layout, that of the words: a lane holds four words that follow each other (16 bytes, 32 weights); what its rows share is
loaded once, each code is decoded once, and nothing goes through LDS before the last sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.pairs import accumulated, decoded, pair_ptr

BLOCK = 128


def unfit(x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, group_size: int) -> str | None:
    """What no int4 kernel takes."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"{x.dtype} activations: it takes float16 and bfloat16"
    if words.shape[-1] == 0:
        return "a weight without columns"
    if group_size < words.shape[-1] * 8 and group_size % 16:
        return f"groups of {group_size} columns are no multiple of 16"
    if not (words.is_contiguous() and scales.is_contiguous() and zeros.is_contiguous()):
        return "the weight is not contiguous"
    if words.shape[-2] * words.shape[-1] >= 1 << 31:
        return "the weight has 2^31 words or more"
    return None


def group_constants(group_size: int, padded: int) -> tuple[int, int]:
    """(GROUP, SPAN) of the kernels: columns of a group, 0 for one a row, and pairs of a word that share a scale."""
    if group_size >= padded or group_size % BLOCK == 0:
        return (0 if group_size >= padded else group_size), 4
    return group_size, 2 if group_size % 64 == 0 else 1


def together(scales: Tensor, zeros: Tensor, group: int) -> bool:
    """A block's scales can be loaded in one number: there are 2 or 4 of 16 bits, at an address for it."""
    whole = group in (32, 64) and scales.element_size() == 2
    return whole and scales.data_ptr() % 8 == 0 and zeros.data_ptr() % 4 == 0


@triton.jit
def group_index(block, place, PART: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr):
    """Index of the scale of word `place` in `block`, for its pairs SPAN * PART and on."""
    if GROUP == 0:
        return block * 0
    elif GROUP % 128 == 0:
        return block // (GROUP // 128)
    elif GROUP == 64:
        return block * 2 + PART
    elif GROUP == 32:
        return block * 4 + PART
    elif GROUP == 16:
        return block * 8 + 2 * PART + place // 8
    else:
        return ((block * 128 + 32 * SPAN * PART + 2 * place).to(tl.uint32) // GROUP).to(tl.int32)


@triton.jit
def _groups_before(b, STEP: tl.constexpr, GROUP: tl.constexpr):
    """Groups before block `b`, a multiple of STEP, where that is a whole number for every such b; else 0."""
    if GROUP > 0 and STEP * 128 % GROUP == 0:
        return b * 128 // GROUP
    else:
        return b * 0


@triton.jit
def _blocks_after(b, STEP: tl.constexpr, GROUP: tl.constexpr):
    """What is left of `b` when `_groups_before` are gone."""
    if GROUP == 0 or STEP * 128 % GROUP == 0:
        return b * 0
    else:
        return b


@triton.jit
def _quarters(values):
    """[N, 4 B] -> four [N, B]: numbers that a lane holds side by side, apart."""
    N: tl.constexpr = values.shape[0]
    B: tl.constexpr = values.shape[1] // 4
    even, odd = tl.split(tl.reshape(values, [N, B, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _block_groups(scales_ptr, zeros_ptr, group_at, block, there, GROUP: tl.constexpr, LAST: tl.constexpr):
    """The 2 or 4 scales of a block in one number, and its zero points in another."""
    EACH: tl.constexpr = 128 // GROUP
    scales = scales_ptr.to(tl.pointer_type(tl.int64 if EACH == 4 else tl.int32), bitcast=True)
    zeros = zeros_ptr.to(tl.pointer_type(tl.int32 if EACH == 4 else tl.int16), bitcast=True)
    at = group_at // EACH + block[None, :]
    if LAST:
        return tl.load(scales + at, mask=there, other=0), tl.load(zeros + at, mask=there, other=0)
    else:
        return tl.load(scales + at), tl.load(zeros + at)


@triton.jit
def _step(
    accs, x_ptr, x_rows, words_ptr, scales_ptr, zeros_ptr, word_at, group_at, x_at, b, blocks, pairs,
    GROUP: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr, LAST: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """`accs` plus the products of the blocks from `b` on. LAST: columns that are not there are 0, and are not read.

    What moves with b is added to the scalar pointers: offsets of lanes stay as they are throughout the loop.
    """
    BW: tl.constexpr = word_at.shape[1]
    STEP: tl.constexpr = BW // 16
    quad = tl.arange(0, BW // 4)
    there = (quad // 4 < blocks - b)[None, :]
    column = (tl.arange(0, BW) // 16 * 64 + tl.arange(0, BW) % 16)[None, :]
    if LAST:
        ws = _quarters(
            tl.load(words_ptr + b * 16 + word_at, mask=(tl.arange(0, BW) // 16 < blocks - b)[None, :], other=0)
        )
    else:
        ws = _quarters(tl.load(words_ptr + b * 16 + word_at))
    scales_ptr += _groups_before(b, STEP, GROUP)
    zeros_ptr += _groups_before(b, STEP, GROUP)
    block = quad // 4 + _blocks_after(b, STEP, GROUP)
    if TOGETHER:
        all_scales, all_zeros = _block_groups(scales_ptr, zeros_ptr, group_at, block, there, GROUP, LAST)
    for part in tl.static_range(4 // SPAN):
        if TOGETHER:
            s = ((all_scales >> (16 * part)) & 0xFFFF).to(tl.uint16)
            s = s.to(scales_ptr.dtype.element_ty, bitcast=True).to(tl.float32)
            z = ((all_zeros >> (8 * part)) & 0xFF).to(tl.int32)
        else:
            group = group_at + group_index(block, quad % 4 * 4, part, SPAN, GROUP)[None, :]
            if LAST:
                s = tl.load(scales_ptr + group, mask=there, other=0.0).to(tl.float32)
                z = tl.load(zeros_ptr + group, mask=there, other=0).to(tl.int32)
            else:
                s = tl.load(scales_ptr + group).to(tl.float32)
                z = tl.load(zeros_ptr + group).to(tl.int32)
        sums = _nothing(len(accs), ws[0].shape)
        for i in tl.static_range(SPAN):
            x4s = ()
            for m in tl.static_range(len(accs)):
                at = x_ptr + (x_rows[m] + b * 64) + x_at + 16 * (SPAN * part + i)
                if LAST:
                    x2 = tl.load(at, mask=column + (b * 64 + 16 * (SPAN * part + i)) < pairs, other=0)
                else:
                    x2 = tl.load(at)
                x4s = x4s + (_quarters(x2),)
            for c in tl.static_range(4):
                d = decoded(ws[c], ws[c] >> 8, z, SPAN * part + i, MATH)
                added = ()
                for m in tl.static_range(len(accs)):
                    added = added + (accumulated(sums[m], d, x4s[m][c], z, MATH),)
                sums = added
        scaled = ()
        for m in tl.static_range(len(accs)):
            scaled = scaled + (accs[m] + sums[m] * s,)
        accs = scaled
    return accs


@triton.jit
def _nothing(M: tl.constexpr, SHAPE: tl.constexpr):
    sums = ()
    for _ in tl.static_range(M):
        sums = sums + (tl.zeros(SHAPE, tl.float32),)
    return sums


@triton.jit
def row_sums(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, row, first, rows, x_stride, columns, blocks, groups,
    GROUP: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr,
    M: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """M float32 [BN, BW / 4]; their sums are weight row `row[n]` times input row `first + m`. `columns` is even."""
    c = tl.arange(0, BW)
    word_at = (row * (blocks * 16))[:, None] + c[None, :]
    group_at = (row * (blocks * (128 // GROUP) if TOGETHER else groups))[:, None]
    x_at = (row * 0)[:, None] + (c // 16 * 64 + c % 16)[None, :]  # as wide as the words: one layout for both
    x_rows = ()
    for m in tl.static_range(M):
        if M == 1:
            x_rows = x_rows + (0,)
        else:
            x_rows = x_rows + (tl.minimum(first + m, rows - 1) * (x_stride // 2),)
    x = pair_ptr(x_ptr)
    accs = _nothing(M, [BN, BW // 4])
    STEP: tl.constexpr = BW // 16
    whole = columns // (128 * STEP) * STEP
    for b in range(0, whole, STEP):
        accs = _step(
            accs, x, x_rows, words_ptr, scales_ptr, zeros_ptr, word_at, group_at, x_at, b, blocks, columns // 2,
            GROUP, SPAN, TOGETHER, False, MATH,
        )  # fmt: skip
    if whole < blocks:
        accs = _step(
            accs, x, x_rows, words_ptr, scales_ptr, zeros_ptr, word_at, group_at, x_at, whole, blocks, columns // 2,
            GROUP, SPAN, TOGETHER, True, MATH,
        )  # fmt: skip
    return accs
