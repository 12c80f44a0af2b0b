"""As `w4_gemv.py`, for a few input rows: each code is decoded once for BM of them.

w4a16 takes it for 2 to 16 rows
"""

import triton
import triton.language as tl

from mmswap.llm.ops.triton.w4 import row_sums


@triton.jit(do_not_specialize=["rows"])
def w4_small(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, bias_ptr, y_ptr, rows, x_stride, outputs, columns, blocks, groups,
    BIAS: tl.constexpr, GROUP: tl.constexpr, SPAN: tl.constexpr, TOGETHER: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """One program: BM input rows (first in the grid, so that those of the same weights run together), BN outputs."""
    first = tl.program_id(0) * BM
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    sums = row_sums(
        x_ptr, words_ptr, scales_ptr, zeros_ptr, row, first, rows, x_stride, columns, blocks, groups,
        GROUP, SPAN, TOGETHER, BM, BN, BW, MATH,
    )  # fmt: skip
    for m in tl.static_range(BM):
        y = tl.sum(sums[m], axis=1)
        if BIAS:
            y += tl.load(bias_ptr + row).to(tl.float32)
        there = n < tl.where(first + m < rows, outputs, 0)
        tl.store(y_ptr + (first + m) * outputs + n, y.to(y_ptr.dtype.element_ty), mask=there)
