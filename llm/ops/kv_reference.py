"""What `kv_store` and `decode_attention` mean, in plain torch: float32, no content looked at, nothing awaited.

A cache [B, heads, slots, D] is a ring: token t lies in slot t % slots. Its kind is its dtype; what lies in slots that
hold no token is never looked at, whatever it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODES = 127
"""Largest int8 code; -128 is not used, so that a value and its negative round alike."""


def kv_store(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Token t of k and v -> slot (start + t) % slots. Of more tokens than slots the last stay.

    16 and 32 bits: a cast. float8: (k - k_offset) / k_scale and v / v_scale, rounded to nearest even, at most the
    largest number in size, 0 for NaN. int8: k the same with k_scale for each channel, rounded to -127..127; v over a
    scale of its token, which is written to v_scale (largest size / 127, in its dtype).
    """
    fits = keys.shape[2]
    if not fits or not k.shape[2]:
        return
    dropped = max(0, k.shape[2] - fits)
    k, v = k[:, :, dropped:], v[:, :, dropped:]
    slots = slots_of(start, dropped, k.shape[2], fits)
    if keys.dtype == torch.int8:
        assert k_scale is not None
        assert v_scale is not None
        scales = token_scales(v, v_scale.dtype)
        put(v_scale.unsqueeze(-1), slots, scales.unsqueeze(-1))
        put(keys, slots, quantised(shifted(k, k_offset), k_scale.unsqueeze(1), torch.int8))
        put(values, slots, quantised(v, scales.unsqueeze(-1), torch.int8))
    elif keys.dtype.itemsize == 1:
        by_head = None if k_scale is None else k_scale.unsqueeze(1)
        put(keys, slots, quantised(shifted(k, k_offset), by_head, keys.dtype))
        put(values, slots, quantised(v, None if v_scale is None else v_scale.unsqueeze(1), values.dtype))
    else:
        put(keys, slots, k.to(keys.dtype))
        put(values, slots, v.to(values.dtype))


def slots_of(start: Tensor, first: int, tokens: int, slots: int) -> Tensor:
    """int64 [B or 1, tokens]: where tokens first .. first + tokens go."""
    return (start.long().unsqueeze(1) + torch.arange(first, first + tokens, device=start.device)) % slots


def shifted(k: Tensor, offset: Tensor | None) -> Tensor:
    """float32 k - offset [heads, D]."""
    return k.float() if offset is None else k.float() - offset.float().unsqueeze(1)


def token_scales(v: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, heads, T]: what the codes of each token are multiples of; 0 for a token of zeros."""
    if not v.shape[-1]:
        return v.new_zeros(v.shape[:-1], dtype=dtype)
    scales = v.float().nan_to_num(0.0).abs_().amax(-1).div_(CODES)
    return scales.clamp_(max=torch.finfo(dtype).max).to(dtype) if dtype == torch.float16 else scales.to(dtype)


def quantised(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Codes of x / scale: rounded to nearest even, saturating; NaN, 0 / 0 among it, becomes 0."""
    most = float(CODES) if dtype == torch.int8 else torch.finfo(dtype).max
    wide = x.float() if scale is None else x.float() / scale.float()
    wide = wide.nan_to_num(0.0).clamp_(-most, most)
    return wide.round_().to(torch.int8) if dtype == torch.int8 else wide.to(dtype)


def put(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """cache[b, :, slots[b, t]] = rows[b, :, t]."""
    if cache.dtype.itemsize == 1:
        cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
    if slots.shape[0] == 1:
        cache.index_copy_(2, slots[0], rows)
    else:
        cache.scatter_(2, slots[:, None, :, None].expand(rows.shape), rows)


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
    """softmax(cap tanh(scale q K^T / cap), sinks) V over the first min(length, slots) slots; soft_cap 0: no tanh.

    Head h reads key head h // (heads of q / heads of keys). K = codes k_scale, V = codes v_scale. Sinks are logits
    that take part in the softmax and have no value. Where no slot may be looked at the result is 0.
    """
    batch, heads, slots, channels = keys.shape
    result = q.new_zeros((*q.shape[:3], values.shape[3]))
    if not slots or not q.numel():
        return result
    wide = q.float().reshape(batch, heads, -1, channels)
    if k_scale is not None:
        wide = wide * k_scale.float().unsqueeze(1)
    scores = (wide @ keys.float().transpose(-1, -2)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    seen = looked_at(length, slots, mask)[:, None]
    scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        extra = sinks.float().view(1, heads, -1, 1)
        top = torch.maximum(top, extra)
    top = top.masked_fill(top == -torch.inf, 0.0)
    shares = torch.exp(scores - top)
    total = shares.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(extra - top)
    weighed = shares @ valued(values, v_scale).masked_fill(~seen.unsqueeze(-1), 0.0)
    return (weighed / total.masked_fill(total == 0, 1.0)).reshape(result.shape).to(q.dtype)


def looked_at(length: Tensor, slots: int, mask: Tensor | None) -> Tensor:
    """bool [B or 1, slots]."""
    seen = torch.arange(slots, device=length.device) < length.unsqueeze(1)
    return seen if mask is None else seen & mask


def valued(values: Tensor, v_scale: Tensor | None) -> Tensor:
    """float32 V of its codes."""
    wide = values.float()
    if v_scale is None:
        return wide
    return wide * (v_scale.float().unsqueeze(-1) if v_scale.dim() == 3 else v_scale.float().unsqueeze(1))
