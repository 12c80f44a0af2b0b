"""One new token's attention over a cache: many programs split the slots, a second kernel joins what they found.

    y = run(q, keys, values, length, scale, soft_cap, k_scale, v_scale, sinks, mask)

The grid is that of the capacity; how many slots are filled is read on the card, and programs past them end at once: a
captured graph stays right as the chat grows. Each lane keeps a softmax of its own over its slots, so nothing is
exchanged between warps before the end. No atomics. Nothing here was run on a card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton import arch, configs
from mmswap.llm.ops.triton.activation import tanh
from mmswap.llm.ops.triton.fp8 import decoded8
from mmswap.llm.ops.triton.kv_store import KINDS, codes_of, unfit_cache
from mmswap.llm.ops.triton.launch import Launcher, dense, power_of_two

_SPAN = 128  # slots that are worth a program of their own
_MOST = 64  # splits; the joining kernel is one for all numbers of them: a cache that grows compiles nothing
_WIDTH = 128  # channels for which the table says how many slots a step takes


@triton.jit
def _number(codes, KIND: tl.constexpr):
    """float32 of what lies in the cache; e4m3 comes 256 times too small."""
    if KIND == "e4m3" or KIND == "e5m2":
        return decoded8(codes, KIND == "e5m2").to(tl.float32)
    else:
        return codes.to(tl.float32)


@triton.jit
def _share(length_ptr, b, length_stride, slots, splits, BT: tl.constexpr):
    """(filled slots, slots of one split: whole steps)."""
    filled = tl.minimum(tl.load(length_ptr + b * length_stride), slots)
    return filled, (filled + splits * BT - 1) // (splits * BT) * BT


@triton.jit(do_not_specialize=["splits"])
def decode_attention(
    q_ptr, keys_ptr, values_ptr, length_ptr, k_scale_ptr, v_scale_ptr, mask_ptr, part_ptr, top_ptr, sum_ptr,
    scale, soft_cap, heads, group, slots, splits, k_channels, v_channels, length_stride, mask_stride,
    qb, qh, keys_b, keys_h, keys_s, values_b, values_h, values_s, scale_b, scale_h, scale_s,
    KIND: tl.constexpr, CAP: tl.constexpr, K_SCALE: tl.constexpr, V_SCALE: tl.constexpr, MASK: tl.constexpr,
    BH: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """BH query heads of one key head, one split of the slots. V_SCALE: none, token, head."""
    chunks = (group + BH - 1) // BH
    chunk, bh = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    b, kh = bh // heads, bh % heads
    split = tl.program_id(1)
    filled, share = _share(length_ptr, b, length_stride, slots, splits, BT)
    low = split * share
    high = tl.minimum(low + share, filled)
    r = chunk * BH + tl.arange(0, BH)
    h = kh * group + tl.minimum(r, group - 1)
    i, j = tl.arange(0, BK), tl.arange(0, BV)
    if low < high:
        q = tl.load(
            q_ptr + b.to(tl.int64) * qb + h[:, None] * qh + i[None, :], mask=(i < k_channels)[None, :], other=0.0
        )
        q = q.to(tl.float32) * (scale * (256.0 if KIND == "e4m3" else 1.0))
        if K_SCALE:
            q *= tl.load(k_scale_ptr + kh * k_channels + i, mask=i < k_channels, other=0.0).to(tl.float32)[None, :]
        if not CAP:
            q *= 1.4426950408889634
        q = q[:, None, :]
        same = (tl.arange(0, BH) * 0)[:, None, None]  # one layout for all: the heads' copies are loaded once
        keys = keys_ptr + b.to(tl.int64) * keys_b + kh * keys_h + i[None, None, :] + same
        values = values_ptr + b.to(tl.int64) * values_b + kh * values_h + j[None, None, :] + same
        top = tl.full([BH, BT], -1.0e30, tl.float32)
        total = tl.zeros([BH, BT], tl.float32)
        acc = tl.zeros([BH, BT, BV], tl.float32)
        for start in range(low, high, BT):
            t = start + tl.arange(0, BT)
            seen = t < high
            if MASK:
                seen = seen & (tl.load(mask_ptr + b * mask_stride + t, mask=seen, other=0) != 0)
            rows = t[None, :, None]
            there = seen[None, :, None]
            k = tl.load(keys + rows * keys_s, mask=there & (i < k_channels)[None, None, :], other=0)
            scores = tl.sum(_number(k, KIND) * q, axis=2)
            if CAP:
                scores = tanh(scores / soft_cap) * (soft_cap * 1.4426950408889634)
            scores = tl.where(seen[None, :], scores, -float("inf"))
            higher = tl.maximum(top, scores)
            shrunk = tl.exp2(top - higher)
            weight = tl.exp2(scores - higher)
            total = total * shrunk + weight
            top = higher
            if V_SCALE == "token":
                at = v_scale_ptr + b.to(tl.int64) * scale_b + kh * scale_h + t * scale_s
                weight *= tl.load(at, mask=seen, other=0.0).to(tl.float32)[None, :]
            v = tl.load(values + rows * values_s, mask=there & (j < v_channels)[None, None, :], other=0)
            acc = acc * shrunk[:, :, None] + weight[:, :, None] * _number(v, KIND)
        highest = tl.max(top, axis=1)
        part = tl.exp2(top - highest[:, None])
        total_all = tl.sum(total * part, axis=1)
        out = tl.sum(acc * part[:, :, None], axis=1)
        if KIND == "e4m3":
            out *= 256.0
        if V_SCALE == "head":
            out *= tl.load(v_scale_ptr + kh * scale_h).to(tl.float32)
        row = (b * heads * group + h) * splits + split
        tl.store(
            part_ptr + row[:, None] * v_channels + j[None, :],
            out,
            mask=(r < group)[:, None] & (j < v_channels)[None, :],
        )
        tl.store(top_ptr + row, highest, mask=r < group)
        tl.store(sum_ptr + row, total_all, mask=r < group)


@triton.jit(do_not_specialize=["splits"])
def join_splits(
    part_ptr, top_ptr, sum_ptr, length_ptr, sinks_ptr, y_ptr, query_heads, slots, splits, v_channels, length_stride,
    SINKS: tl.constexpr, BS: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One query head: the splits' sums, each lowered to the highest score of all."""
    row = tl.program_id(0)
    filled, share = _share(length_ptr, row // query_heads, length_stride, slots, splits, BT)
    s, j = tl.arange(0, BS), tl.arange(0, BV)
    there = (s < splits) & (s * share < filled)
    top = tl.load(top_ptr + row * splits + s, mask=there, other=-1.0e30)
    total = tl.load(sum_ptr + row * splits + s, mask=there, other=0.0)
    highest = tl.max(top, axis=0)
    if SINKS:
        sink = tl.load(sinks_ptr + row % query_heads).to(tl.float32) * 1.4426950408889634
        highest = tl.maximum(highest, sink)
    weight = tl.exp2(top - highest)
    sums = tl.sum(total * weight, axis=0)
    if SINKS:
        sums += tl.exp2(sink - highest)
    at = part_ptr + (row * splits + s)[:, None] * v_channels + j[None, :]
    part = tl.load(at, mask=there[:, None] & (j < v_channels)[None, :], other=0.0)
    y = tl.sum(part * weight[:, None], axis=0) / tl.where(sums == 0.0, 1.0, sums)
    tl.store(y_ptr + row * v_channels + j, y.to(y_ptr.dtype.element_ty), mask=j < v_channels)


_attention, _join = Launcher(decode_attention), Launcher(join_splits)


def refuses(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    scale: float,
    soft_cap: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    sinks: Tensor | None,
    mask: Tensor | None,
) -> str | None:
    """Why not; None when `run` is right."""
    return unfit_cache(keys, values)


def splits_of(slots: int, programs: int, processors: int) -> int:
    """Programs that share the slots of one head: enough to fill the card four times, none with under 128 slots."""
    wanted = -(-4 * processors // programs)
    return power_of_two(max(1, min(-(-slots // _SPAN), wanted, _MOST)))


def slots_of_step(config: configs.Config, heads: int, width: int) -> int:
    """BT: as many slots as keep the sums of a lane few enough for its registers, whatever the heads' width."""
    return max(4, config.rows * config.columns * _WIDTH // (heads * power_of_two(width)))


def run(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    scale: float,
    soft_cap: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    sinks: Tensor | None,
    mask: Tensor | None,
) -> Tensor:
    """[B, Hq, 1, Dv]."""
    batch, heads, slots, k_width = keys.shape
    query_heads, v_width = q.shape[1], values.shape[3]
    y = q.new_empty((batch, query_heads, 1, v_width))
    if not y.numel():
        return y
    if not slots:
        return y.zero_()
    found = arch.card(q.device)
    q = dense(q)
    group = query_heads // heads
    config = configs.choose("decode_attention", found, (group, power_of_two(k_width), keys.element_size()))
    in_one = min(config.rows, power_of_two(group))
    step = slots_of_step(config, in_one, max(k_width, v_width))
    programs = batch * heads * -(-group // in_one)
    splits = splits_of(slots, programs, arch.processors(q.device))
    part = torch.empty(batch * query_heads * splits, v_width, dtype=torch.float32, device=q.device)
    top, total = torch.empty(2, len(part), dtype=torch.float32, device=q.device)
    by_token = v_scale is not None and v_scale.dim() == 3
    strides = (0, 0, 0) if v_scale is None else v_scale.stride() if by_token else (0, v_scale.stride(0), 0)
    length_stride = 0 if length.shape[0] == 1 else length.stride(0)
    _attention(
        (programs, splits, 1),
        (
            q, codes_of(keys), codes_of(values), length, q if k_scale is None else k_scale.contiguous(),
            q if v_scale is None else v_scale, q if mask is None else mask.contiguous().view(torch.uint8),
            part, top, total, float(scale), float(soft_cap), heads, group, slots, splits, k_width, v_width,
            length_stride, slots, q.stride(0), q.stride(1), *keys.stride()[:3], *values.stride()[:3], *strides,
        ),
        (
            KINDS[keys.dtype], soft_cap != 0.0, k_scale is not None,
            "none" if v_scale is None else "token" if by_token else "head", mask is not None,
            in_one, step, power_of_two(k_width), power_of_two(v_width),
        ),
        config.warps,
    )  # fmt: skip
    _join(
        (batch * query_heads, 1, 1),
        (
            part, top, total, length, q if sinks is None else sinks.contiguous(), y,
            query_heads, slots, splits, v_width, length_stride,
        ),
        (sinks is not None, _MOST, step, power_of_two(v_width)),
        4,
    )  # fmt: skip
    return y
