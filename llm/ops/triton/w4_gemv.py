"""y = W x with W in 4 bits and one input row: the product on which decoding waits.

    w4a16(x, words, scales, zeros, None, bias, in_features, group_size)      # x [..., in], one row

`w4_small.py` is for a few rows, `dequantise.py` for many.
"""

import triton
import triton.language as tl

from mmswap.llm.ops.triton.w4 import row_sums


@triton.jit
def w4_gemv(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, bias_ptr, y_ptr, outputs, columns, blocks, groups,
    BIAS: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr,
    BN: tl.constexpr, BW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """y[n] = bias[n] + the sum over k of x[k] * scale * (code - zero), rounded once."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    sums = row_sums(
        x_ptr,
        words_ptr,
        scales_ptr,
        zeros_ptr,
        row,
        0,
        1,
        0,
        columns,
        blocks,
        groups,
        GROUP,
        SPAN,
        TOGETHER,
        1,
        BN,
        BW,
        MATH,
    )
    y = tl.sum(sums[0], axis=1)
    if BIAS:
        y += tl.load(bias_ptr + row).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n < outputs)
