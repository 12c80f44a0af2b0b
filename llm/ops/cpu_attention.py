"""Attention of one token over a cache, on the processor, by torch's flash kernel.

The slots are cut to those that hold a token, so nothing else is read. Knows no ring order: none is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops import kv_reference
from mmswap.llm.ops.backends import Implementation

_FEW = 4
"""In bfloat16 this many query heads of a key head are worth being rows of one product; in other dtypes two are."""


def decode_attention(
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
    """16 and 32 bits in their own dtype, with float32 sums; codes in float32. What flash lacks: the reference, cut."""
    batch, heads, slots, channels = keys.shape
    held = int(length) if length.shape[0] == 1 else int(length.max())
    if held < slots:
        keys, values = keys.narrow(2, 0, held), values.narrow(2, 0, held)
        mask = mask if mask is None else mask.narrow(1, 0, held)
        v_scale = v_scale.narrow(2, 0, held) if v_scale is not None and v_scale.dim() == 3 else v_scale
    alike = values.shape[3] == channels and (keys.dtype.itemsize == 1 or keys.dtype == q.dtype)
    if soft_cap or sinks is not None or mask is not None or length.shape[0] != 1 or not (held and alike):
        plain = (widened(keys), widened(values)) if keys.dtype.itemsize == 1 else (keys, values)
        return kv_reference.decode_attention(q, *plain, length, scale, soft_cap, k_scale, v_scale, sinks, mask)
    if keys.dtype.itemsize > 1:
        shared = q.shape[1] // heads
        if shared == 1 or (shared < _FEW and q.dtype == torch.bfloat16):
            return functional.scaled_dot_product_attention(q, keys, values, scale=scale, enable_gqa=shared > 1)
        rows = q.view(batch, heads, shared, channels)
        return functional.scaled_dot_product_attention(rows, keys, values, scale=scale).view(q.shape)
    rows = q.view(batch, heads, -1, channels)
    rows = rows.float() if k_scale is None else rows * k_scale.float().unsqueeze(1)
    k, short = _decoded(keys)
    v, _ = _decoded(values)
    if v_scale is not None and v_scale.dim() == 3:
        v = v.mul_(v_scale.unsqueeze(-1))
    result = functional.scaled_dot_product_attention(rows, k, v, scale=scale * short)
    if v_scale is not None and v_scale.dim() == 2:
        result = result.mul_(v_scale.unsqueeze(1))
    return (result if short == 1 else result.mul_(short)).to(q.dtype).view(q.shape)


def widened(codes: Tensor) -> Tensor:
    """float32 numbers of 8-bit codes."""
    wide, short = _decoded(codes)
    return wide if short == 1 else wide.mul_(short)


def _decoded(codes: Tensor) -> tuple[Tensor, float]:
    """float32 numbers, and what they are to be multiplied by. torch's own cast of float8 takes ten times as long.

    The bits of a float8_e5m2 are the upper half of a float16. Those of a float8_e4m3fn, sign apart, stand in a float16
    that is 2^-8 of the number; NaN reads as 480, and no store writes it.
    """
    if codes.dtype == torch.int8:
        return codes.float(), 1.0
    bits = codes.view(torch.int8).to(torch.int16)
    if codes.dtype == torch.float8_e5m2:
        return bits.bitwise_left_shift_(8).view(torch.float16).float(), 1.0
    return bits.bitwise_left_shift_(7).bitwise_and_(-0x4001).view(torch.float16).float(), 256.0


def _refuses(
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
    if keys.stride(-1) != 1 or values.stride(-1) != 1 or not q.is_contiguous():
        return "a tensor is not contiguous"
    return None if keys.numel() and q.numel() else "there is nothing to look at"


IMPLEMENTATIONS = {"decode_attention": Implementation(decode_attention, _refuses)}
