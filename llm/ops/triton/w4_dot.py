"""As `w4_small.py`, by the matrix units: sixteen input rows cost what one does, so it is for more than a few.

    w4a16 takes it above `configs.DOT_ABOVE` rows, for groups that are a multiple of 32 columns or whole rows

A block's codes are eight matrices of sixteen columns: nibble by nibble, as they lie in the words. (code - zero) is
exact in 16 bits, products are summed in float32, and scales are applied to the sums of their group.
"""

import triton
import triton.language as tl

from mmswap.llm.ops.triton.pairs import pair_ptr
from mmswap.llm.ops.triton.w4 import group_index


@triton.jit
def _half(pair, HIGH: tl.constexpr, BF16: tl.constexpr):
    """One number of each pair, in its own 16 bits."""
    half = ((pair >> 16) if HIGH else pair) & 0xFFFF
    return half.to(tl.uint16).to(tl.bfloat16 if BF16 else tl.float16, bitcast=True)


@triton.jit
def _codes(w, z, NIBBLE: tl.constexpr, BF16: tl.constexpr):
    """code - zero of one nibble of the words, in 16 bits."""
    code = (w >> (4 * NIBBLE)) & 15
    if BF16:  # the last 16 bits of small whole numbers in float32 are 0
        bits = (code - z).to(tl.float32).to(tl.uint32, bitcast=True) >> 16
        return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        zero = (z | 0x6400).to(tl.uint16).to(tl.float16, bitcast=True)  # 1024 + z
        return (code | 0x6400).to(tl.uint16).to(tl.float16, bitcast=True) - zero


@triton.jit
def _block(
    acc, x, words, scales, zeros, b, x_at, words_at, groups_at, pairs,
    GROUP: tl.constexpr, SPAN: tl.constexpr, LAST: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """`acc` plus the products of block `b`. LAST: columns that are not there are 0, and are not read."""
    w = tl.load(words + b * 16 + words_at)
    for part in tl.static_range(4 // SPAN):
        group = groups_at + group_index(b, 0, part, SPAN, GROUP)
        s = tl.load(scales + group).to(tl.float32)
        z = tl.load(zeros + group).to(tl.int32)[None, :]
        sums = tl.zeros(acc.shape, tl.float32)
        for i in tl.static_range(SPAN):
            at = x + b * 64 + 16 * (SPAN * part + i) + x_at
            if LAST:
                c = b * 64 + 16 * (SPAN * part + i) + tl.arange(0, 16)
                x2 = tl.load(at, mask=(c < pairs)[None, :], other=0)
            else:
                x2 = tl.load(at)
            sums = tl.dot(_half(x2, False, BF16), _codes(w, z, SPAN * part + i, BF16), sums)
            sums = tl.dot(_half(x2, True, BF16), _codes(w, z, SPAN * part + i + 4, BF16), sums)
        acc += sums * s[None, :]
    return acc


@triton.jit(do_not_specialize=["rows"])
def w4_dot(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, bias_ptr, y_ptr, rows, x_stride, outputs, columns, blocks, groups,
    BIAS: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, BN: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """One program: BN outputs of up to 16 input rows."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    m, c = tl.arange(0, 16), tl.arange(0, 16)
    words_at = (row * (blocks * 16))[None, :] + c[:, None]
    x_at = (tl.minimum(m, rows - 1) * (x_stride // 2))[:, None] + c[None, :]
    x = pair_ptr(x_ptr)
    acc = tl.zeros([16, BN], tl.float32)
    whole = columns // 128
    for b in range(whole):
        acc = _block(
            acc, x, words_ptr, scales_ptr, zeros_ptr, b, x_at, words_at, row * groups, columns // 2,
            GROUP, SPAN, False, BF16,
        )  # fmt: skip
    if whole < blocks:
        acc = _block(
            acc, x, words_ptr, scales_ptr, zeros_ptr, whole, x_at, words_at, row * groups, columns // 2,
            GROUP, SPAN, True, BF16,
        )  # fmt: skip
    if BIAS:
        acc += tl.load(bias_ptr + row).to(tl.float32)[None, :]
    there = (m < rows)[:, None] & (n < outputs)[None, :]
    tl.store(y_ptr + m[:, None] * outputs + n[None, :], acc.to(y_ptr.dtype.element_ty), mask=there)
