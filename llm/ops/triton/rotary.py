"""rotary by Triton: queries and keys of one token turn in one start, sections of a picture's positions included.

    q, k = run(q, k, cos, sin, sections)      # q [B, Hq, T, D], k [B, Hk, T, D]; cos, sin [B or 1, T, R], or [A, ...]

Nothing here was run on a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.launch import Launcher, dense, power_of_two

SECTIONS = 4
"""Sections that it tells apart."""


@triton.jit
def _turn(
    x_ptr, y_ptr, head, heads, sb, sh, st, b, t, tokens, half, channels, cos_0, sin_0, cos_1, sin_1,
    BH: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    h = head + tl.arange(0, BH)[:, None]
    i = tl.arange(0, HALF)[None, :]
    there = (h < heads) & (i < half)
    x = x_ptr + b.to(tl.int64) * sb + h * sh + t * st
    y = y_ptr + ((b * heads + h).to(tl.int64) * tokens + t) * channels
    first = tl.load(x + i, mask=there, other=0.0).to(tl.float32)
    second = tl.load(x + half + i, mask=there, other=0.0).to(tl.float32)
    tl.store(y + i, (first * cos_0 - second * sin_0).to(y_ptr.dtype.element_ty), mask=there)
    tl.store(y + half + i, (second * cos_1 + first * sin_1).to(y_ptr.dtype.element_ty), mask=there)
    if REST:
        r = 2 * half + tl.arange(0, BR)[None, :]
        kept = (h < heads) & (r < channels)
        tl.store(y + r, tl.load(x + r, mask=kept, other=0.0), mask=kept)


@triton.jit
def _angles(pointer, base, axis_stride, i, half, S1, S2, S3, axes):
    axis = ((i >= S1).to(tl.int32) + (i >= S2).to(tl.int32) + (i >= S3).to(tl.int32)) % axes
    at = pointer + base + axis * axis_stride + i
    first = tl.load(at, mask=i < half, other=0.0).to(tl.float32)
    return first[None, :], tl.load(at + half, mask=i < half, other=0.0).to(tl.float32)[None, :]


@triton.jit(do_not_specialize=["tokens"])
def rotary(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out, k_out, q_heads, k_heads, tokens, half, channels,
    qb, qh, qt, kb, kh, kt, axis_stride, batch_stride, token_stride, S1, S2, S3, axes, q_blocks,
    BH: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """One token, BH heads: the first `q_blocks` programs of a token take queries, the others keys."""
    b, t = tl.program_id(0) // tokens, tl.program_id(0) % tokens
    i = tl.arange(0, HALF)
    base = b * batch_stride + t * token_stride
    cos_0, cos_1 = _angles(cos_ptr, base, axis_stride, i, half, S1, S2, S3, axes)
    sin_0, sin_1 = _angles(sin_ptr, base, axis_stride, i, half, S1, S2, S3, axes)
    block = tl.program_id(1)
    if block < q_blocks:
        _turn(
            q_ptr, q_out, block * BH, q_heads, qb, qh, qt, b, t, tokens, half, channels,
            cos_0, sin_0, cos_1, sin_1, BH, HALF, REST, BR,
        )  # fmt: skip
    else:
        _turn(
            k_ptr, k_out, (block - q_blocks) * BH, k_heads, kb, kh, kt, b, t, tokens, half, channels,
            cos_0, sin_0, cos_1, sin_1, BH, HALF, REST, BR,
        )  # fmt: skip


_rotary = Launcher(rotary)


def refuses(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> str | None:
    """Why not; None when `run` is right."""
    if len(sections) > SECTIONS:
        return f"{len(sections)} sections: it takes {SECTIONS}"
    if cos.dtype != sin.dtype:
        return "cos and sin differ in dtype"
    return None


def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(q, k) turned, contiguous."""
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    batch, q_heads, tokens, channels = q.shape
    turned = cos.shape[-1]
    if not turned:
        return q_out.copy_(q), k_out.copy_(k)
    q, k, cos, sin = dense(q), dense(k), cos.contiguous(), sin.contiguous()
    axes = cos.shape[0] if sections else 1
    starts = [*accumulate(sections)][: len(sections) - 1] if sections else []
    starts += [turned] * (SECTIONS - 1 - len(starts))
    heads = 4
    q_blocks = -(-q_heads // heads)
    rest = channels - turned
    _rotary(
        (batch * tokens, q_blocks + -(-k.shape[1] // heads), 1),
        (
            q, k, cos, sin, q_out, k_out, q_heads, k.shape[1], tokens, turned // 2, channels,
            *q.stride()[:3], *k.stride()[:3], cos.stride(0) if sections else 0,
            0 if cos.shape[-3] == 1 else cos.stride(-3), turned, *starts, axes, q_blocks,
        ),
        (heads, power_of_two(turned // 2), rest > 0, power_of_two(max(rest, 1))),
        1,
    )  # fmt: skip
    return q_out, k_out
