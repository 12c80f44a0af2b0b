"""kv_store by Triton: new keys and values into a ring of slots, in every kind of cache, quantised on the way.

    run(k, v, keys, values, start, k_offset, k_scale, v_scale)

Where it begins is read on the card, so that a captured graph moves on. Nothing here was run on a card.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.fp8 import encoded8
from mmswap.llm.ops.triton.launch import Launcher, dense, power_of_two

KINDS = {
    torch.float16: "plain",
    torch.bfloat16: "plain",
    torch.float32: "plain",
    torch.int8: "int8",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}
"""dtype of a cache -> KIND of the kernels."""

_NUMBERS = 2048  # keys of a program that takes more than one token: 16 of a lane


@triton.jit
def _numbers(x):
    """NaN becomes 0, infinities the largest numbers of float32."""
    x = tl.where(x == x, x, 0.0)
    return tl.minimum(tl.maximum(x, -3.4028234663852886e38), 3.4028234663852886e38)


@triton.jit
def _code(x, scale, KIND: tl.constexpr, SCALED: tl.constexpr):
    """Codes of x / scale, saturating; 0 for NaN, 0 / 0 among it."""
    if SCALED:
        x = tl.div_rn(x, scale)
    x = _numbers(x)
    if KIND == "int8":
        x = tl.minimum(tl.maximum(x, -127.0), 127.0)
        return ((x + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 * 2^23: the sum rounds to nearest even
    else:
        return encoded8(x, KIND == "e5m2")


@triton.jit(do_not_specialize=["tokens"])
def kv_store(
    k_ptr, v_ptr, keys_ptr, values_ptr, start_ptr, offset_ptr, k_scale_ptr, v_scale_ptr,
    heads, tokens, slots, k_channels, v_channels, start_stride,
    kb, kh, kt, vb, vh, vt, keys_b, keys_h, keys_s, values_b, values_h, values_s, scale_b, scale_h, scale_s,
    KIND: tl.constexpr, OFFSET: tl.constexpr, K_SCALE: tl.constexpr, V_SCALE: tl.constexpr,
    BT: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """BT tokens of one head of one row of the batch. Of more tokens than slots the last are stored."""
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    t = tl.maximum(tokens - slots, 0) + tl.program_id(1) * BT + tl.arange(0, BT)
    slot = (tl.load(start_ptr + b * start_stride) + t) % slots
    i, j = tl.arange(0, BK), tl.arange(0, BV)
    k_there = (t < tokens)[:, None] & (i < k_channels)[None, :]
    v_there = (t < tokens)[:, None] & (j < v_channels)[None, :]
    k = tl.load(k_ptr + b.to(tl.int64) * kb + h * kh + t[:, None] * kt + i[None, :], mask=k_there, other=0.0)
    v = tl.load(v_ptr + b.to(tl.int64) * vb + h * vh + t[:, None] * vt + j[None, :], mask=v_there, other=0.0)
    keys = keys_ptr + b.to(tl.int64) * keys_b + h * keys_h + slot[:, None] * keys_s + i[None, :]
    values = values_ptr + b.to(tl.int64) * values_b + h * values_h + slot[:, None] * values_s + j[None, :]
    if KIND == "plain":
        tl.store(keys, k.to(tl.float32).to(keys_ptr.dtype.element_ty), mask=k_there)
        tl.store(values, v.to(tl.float32).to(values_ptr.dtype.element_ty), mask=v_there)
    else:
        k, v = k.to(tl.float32), v.to(tl.float32)
        if OFFSET:
            k -= tl.load(offset_ptr + h * k_channels + i, mask=i < k_channels, other=0.0).to(tl.float32)[None, :]
        k_scale = tl.full([1, BK], 1.0, tl.float32)
        if K_SCALE:
            k_scale = tl.load(k_scale_ptr + h * k_channels + i, mask=i < k_channels, other=1.0).to(tl.float32)[None, :]
        tl.store(keys, _code(k, k_scale, KIND, K_SCALE), mask=k_there)
        v_scale = tl.full([1, 1], 1.0, tl.float32)
        if KIND == "int8":
            largest = tl.minimum(tl.div_rn(tl.max(tl.abs(_numbers(v)), axis=1), 127.0), 3.4028234663852886e38)
            if v_scale_ptr.dtype.element_ty == tl.float16:
                largest = tl.minimum(largest, 65504.0)
            kept = largest.to(v_scale_ptr.dtype.element_ty)
            at = v_scale_ptr + b.to(tl.int64) * scale_b + h * scale_h + slot * scale_s
            tl.store(at, kept, mask=t < tokens)
            v_scale = kept.to(tl.float32)[:, None]
        elif V_SCALE:
            v_scale = tl.load(v_scale_ptr + h * scale_h + tl.zeros([1, 1], tl.int32)).to(tl.float32)
        tl.store(values, _code(v, v_scale, KIND, V_SCALE), mask=v_there)


_kv_store = Launcher(kv_store)


def refuses(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> str | None:
    """Why not; None when `run` is right."""
    return unfit_cache(keys, values)


def unfit_cache(keys: Tensor, values: Tensor) -> str | None:
    """What no kernel takes of a cache."""
    if keys.stride(3) != 1 or values.stride(3) != 1:
        return "channels of the cache do not follow each other"
    wide = max(keys.shape[3], values.shape[3])
    if wide > 512:
        return f"heads of {wide} channels: it takes 512"
    if max(abs(keys.stride(1)), abs(values.stride(1))) * keys.shape[1] >= 1 << 31:
        return "a cache of 2^31 numbers for one row of the batch"
    return None


def codes_of(cache: Tensor) -> Tensor:
    """The cache as the kernels take it: 8-bit floats as bytes."""
    return cache.view(torch.uint8) if KINDS[cache.dtype] in ("e4m3", "e5m2") else cache


def run(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Writes keys, values, and v_scale of an int8 cache."""
    batch, heads, slots, _ = keys.shape
    tokens = min(k.shape[2], slots)
    if not batch * heads * tokens:
        return
    k, v = dense(k), dense(v)
    k_width, v_width = k.shape[3], v.shape[3]
    kind = KINDS[keys.dtype]
    at_once = 1 if tokens == 1 else max(1, _NUMBERS // power_of_two(max(k_width, v_width)))
    by_token = v_scale is not None and v_scale.dim() == 3
    scale_strides = (0, 0, 0) if v_scale is None else v_scale.stride() if by_token else (0, v_scale.stride(0), 0)
    _kv_store(
        (batch * heads, -(-tokens // at_once), 1),
        (
            k, v, codes_of(keys), codes_of(values), start,
            k if k_offset is None else k_offset.contiguous(), k if k_scale is None else k_scale.contiguous(),
            k if v_scale is None else v_scale,
            heads, k.shape[2], slots, k_width, v_width, 0 if start.shape[0] == 1 else start.stride(0),
            *k.stride()[:3], *v.stride()[:3], *keys.stride()[:3], *values.stride()[:3], *scale_strides,
        ),
        (
            kind, k_offset is not None, k_scale is not None, v_scale is not None,
            at_once, power_of_two(k_width), power_of_two(v_width),
        ),
        1 if tokens == 1 else 4,
    )  # fmt: skip
