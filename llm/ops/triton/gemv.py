"""y = W x for float16 and bfloat16 weights and up to four input rows: heads and layers that are not quantised.

    y = run(x, weight, bias)      # [..., in] -> [..., out]; refuses more rows: the matrix product of torch is for them

Products of pairs, summed in float32. Nothing here was run on a card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.triton import arch, configs
from mmswap.llm.ops.triton.launch import Launcher, aligned
from mmswap.llm.ops.triton.pairs import pair_dot, pair_ptr

ROWS = 4
"""Input rows that it takes."""


@triton.jit
def _step(accs, xs, weight, pair, pairs, LAST: tl.constexpr, MATH: tl.constexpr):
    if LAST:
        w = tl.load(weight, mask=pair < pairs, other=0)
    else:
        w = tl.load(weight)
    added = ()
    for m in tl.static_range(len(accs)):
        if LAST:
            x = tl.load(xs[m], mask=pair < pairs, other=0)
        else:
            x = tl.load(xs[m])
        added = added + (pair_dot(w, x, accs[m], MATH),)
    return added


@triton.jit
def _moved(xs, by):
    moved = ()
    for m in tl.static_range(len(xs)):
        moved = moved + (xs[m] + by,)
    return moved


@triton.jit(do_not_specialize=["rows"])
def gemv(
    x_ptr, weight_ptr, bias_ptr, y_ptr, rows, x_stride, outputs, pairs, stride,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BP: tl.constexpr, MATH: tl.constexpr,
):  # fmt: skip
    """One program: BN outputs of BM input rows, BP pairs of columns at a time. `stride`: of weight rows, in numbers."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.minimum(n, outputs - 1)
    p = tl.arange(0, BP)[None, :]
    weight = pair_ptr(weight_ptr) + row.to(tl.int64)[:, None] * (stride // 2) + p
    x = pair_ptr(x_ptr) + (row * 0)[:, None] + p
    xs = ()
    accs = ()
    for m in tl.static_range(BM):
        xs = xs + (x + tl.minimum(m, rows - 1) * (x_stride // 2),)
        accs = accs + (tl.zeros([BN, BP], tl.float32),)
    whole = pairs // BP * BP
    for start in range(0, whole, BP):
        accs = _step(accs, _moved(xs, start), weight + start, p + start, pairs, False, MATH)
    if whole < pairs:
        accs = _step(accs, _moved(xs, whole), weight + whole, p + whole, pairs, True, MATH)
    for m in tl.static_range(BM):
        y = tl.sum(accs[m], axis=1)
        if BIAS:
            y += tl.load(bias_ptr + row).to(tl.float32)
        tl.store(y_ptr + m * outputs + n, y.to(y_ptr.dtype.element_ty), mask=n < tl.where(m < rows, outputs, 0))


_gemv = Launcher(gemv)


def refuses(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Why not; None when `run` is right."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"{x.dtype} activations: it takes float16 and bfloat16"
    if x.shape[-1] == 0 or x.numel() > ROWS * x.shape[-1]:
        return f"it takes up to {ROWS} input rows"
    if x.shape[-1] % 2 or weight.stride(1) != 1 or weight.stride(0) % 2:
        return "rows of the weight are not made of pairs of numbers"
    return None


def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[..., in] -> [..., out]."""
    outputs, columns = weight.shape
    y = x.new_empty((*x.shape[:-1], outputs))
    if y.numel() == 0:
        return y
    rows = y.numel() // outputs
    if weight.data_ptr() % 4:  # it begins within a pair; `refuses` must not look at addresses
        return functional.linear(x, weight, bias)
    x = aligned(x.reshape(rows, columns))
    found = arch.card(x.device)
    config = configs.choose("gemv", found, (outputs, columns, rows))
    _gemv(
        (-(-outputs // config.rows), 1, 1),
        (
            x,
            weight,
            x if bias is None else bias.contiguous(),
            y,
            rows,
            x.stride(0),
            outputs,
            columns // 2,
            weight.stride(0),
        ),
        (bias is not None, 1 << (rows - 1).bit_length(), config.rows, config.columns, arch.pairs_math(found, x.dtype)),
        config.warps,
    )
    return y
