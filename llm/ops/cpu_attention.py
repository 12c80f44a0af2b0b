"""Attention of one token over a cache, on the processor, by torch's flash kernel.

The slots are cut to those that hold a token, so nothing else is read. Knows no ring order: none is needed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops import kv_reference
from mmswap.llm.ops.backends import Implementation

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
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
    """By flash in the dtype of q with float32 sums; codes, caps and sinks in float32; masks by the reference, cut."""
    batch, heads, slots, channels = keys.shape
    held = int(length) if length.shape[0] == 1 else int(length.max())
    if held < slots:
        keys, values = keys.narrow(2, 0, held), values.narrow(2, 0, held)
        mask = mask if mask is None else mask.narrow(1, 0, held)
        v_scale = v_scale.narrow(2, 0, held) if v_scale is not None and v_scale.dim() == 3 else v_scale
    if mask is not None or length.shape[0] != 1 or not held:
        plain = (widened(keys), widened(values)) if keys.dtype.itemsize == 1 else (keys, values)
        return kv_reference.decode_attention(q, *plain, length, scale, soft_cap, k_scale, v_scale, sinks, mask)
    flash = not soft_cap and sinks is None and values.shape[3] == channels
    shared = q.shape[1] // heads
    if flash and keys.dtype == q.dtype:
        if shared == 1 or (shared < _FEW and q.dtype == torch.bfloat16):
            return functional.scaled_dot_product_attention(q, keys, values, scale=scale, enable_gqa=shared > 1)
        rows = q.view(batch, heads, shared, channels)
        return functional.scaled_dot_product_attention(rows, keys, values, scale=scale).view(q.shape)
    rows = q.view(batch, heads, shared, channels).float()
    rows = rows if k_scale is None else rows * k_scale.unsqueeze(1)
    k, short = _decoded(keys)
    v, _ = _decoded(values)
    if v_scale is not None and v_scale.dim() == 3:
        v = v.mul_(v_scale.unsqueeze(-1))
    if flash:
        result = functional.scaled_dot_product_attention(rows, k, v, scale=scale * short)
    else:
        result = _shares(torch.matmul(rows, k.transpose(2, 3)).mul_(scale * short), soft_cap, sinks) @ v
    if v_scale is not None and v_scale.dim() == 2:
        result = result.mul_(v_scale.unsqueeze(1))
    return (result if short == 1 else result.mul_(short)).to(q.dtype).view(*q.shape[:3], -1)


def _shares(scores: Tensor, soft_cap: float, sinks: Tensor | None) -> Tensor:
    """Softmax of float32 scores [B, heads, shared, slots], which are written over."""
    if soft_cap:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if sinks is None:
        return scores.softmax(-1)
    extra = sinks.float().view(1, scores.shape[1], -1, 1).expand(len(scores), -1, -1, 1)
    return torch.cat((scores, extra), -1).softmax(-1)[..., :-1]


def widened(codes: Tensor) -> Tensor:
    """float32 numbers of 8-bit codes."""
    wide, short = _decoded(codes)
    return wide if short == 1 else wide.mul_(short)


def _decoded(codes: Tensor) -> tuple[Tensor, float]:
    """(float32 numbers, what they are to be multiplied by); of codes a tensor of their own.

    torch's own cast of float8_e4m3fn takes ten times as long.
    The bits of a float8_e5m2 are the upper half of a float16. Those of a float8_e4m3fn, sign apart, stand in a float16
    that is 2^-8 of the number; NaN reads as 480, and no store writes it.
    """
    if codes.dtype not in _FLOAT8:
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
