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
def _step(
    accs, xs, words, scales, zeros, block, place, blocks, pairs,
    GROUP: tl.constexpr, SPAN: tl.constexpr, LAST: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """`accs` plus the products of one step. LAST: columns that are not there are 0, and nothing of them is read."""
    there = (block < blocks)[None, :]
    column = (block * 64 + place)[None, :]
    if LAST:
        w = tl.load(words, mask=there, other=0)
    else:
        w = tl.load(words)
    high = w >> 8
    for part in tl.static_range(4 // SPAN):
        group = group_index(block, place, part, SPAN, GROUP)[None, :]
        if LAST:
            s = tl.load(scales + group, mask=there, other=0.0).to(tl.float32)
            z = tl.load(zeros + group, mask=there, other=0).to(tl.int32)
        else:
            s = tl.load(scales + group).to(tl.float32)
            z = tl.load(zeros + group).to(tl.int32)
        sums = _nothing(len(accs), w.shape)
        for i in tl.static_range(SPAN):
            d = decoded(w, high, z, SPAN * part + i, MATH)
            added = ()
            for m in tl.static_range(len(accs)):
                if LAST:
                    x2 = tl.load(xs[m] + 16 * (SPAN * part + i), mask=column + 16 * (SPAN * part + i) < pairs, other=0)
                else:
                    x2 = tl.load(xs[m] + 16 * (SPAN * part + i))
                added = added + (accumulated(sums[m], d, x2, z, MATH),)
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
    GROUP: tl.constexpr, SPAN: tl.constexpr, M: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """M float32 [BN, BW], whose sums over BW are weight row `row[n]` times input row `first + m`. `columns` is even."""
    c = tl.arange(0, BW)
    block, place = c // 16, c % 16
    words = words_ptr + (row * (blocks * 16))[:, None] + c[None, :]
    x = pair_ptr(x_ptr) + (row * 0)[:, None] + (block * 64 + place)[None, :]
    xs = ()
    for m in tl.static_range(M):
        if M == 1:
            xs = xs + (x,)
        else:
            xs = xs + (x + tl.minimum(first + m, rows - 1) * (x_stride // 2),)
    scales = scales_ptr + (row * groups)[:, None]
    zeros = zeros_ptr + (row * groups)[:, None]
    accs = _nothing(M, [BN, BW])
    STEP: tl.constexpr = BW // 16
    whole = columns // (128 * STEP) * STEP
    for b in range(0, whole, STEP):
        accs = _step(
            accs,
            _moved(xs, b * 64),
            words + b * 16,
            scales,
            zeros,
            block + b,
            place,
            blocks,
            columns // 2,
            GROUP,
            SPAN,
            False,
            MATH,
        )
    if whole < blocks:
        accs = _step(
            accs,
            _moved(xs, whole * 64),
            words + whole * 16,
            scales,
            zeros,
            block + whole,
            place,
            blocks,
            columns // 2,
            GROUP,
            SPAN,
            True,
            MATH,
        )
    return accs


@triton.jit
def _moved(xs, by):
    moved = ()
    for m in tl.static_range(len(xs)):
        moved = moved + (xs[m] + by,)
    return moved
