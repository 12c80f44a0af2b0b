"""kv_store and decode_attention over a ring of slots, 16-bit or 8-bit. Meaning: `docs/ops.md`."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import address, code, crowded, dense, oversized, start, strided
from mmswap.hip_ext.supply import kernels

_KV, _ATTENTION = STRUCTS["mms_kv"], STRUCTS["mms_attention"]
_WAVES = 4  # of a block that stores, a token each
CHANNELS = 512
"""Channels of a head that a kernel holds at once."""


def refuses_store(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> str | None:
    """Why not; None when `store` is right."""
    kept = k.shape[0] * k.shape[1] * min(k.shape[2], keys.shape[2])
    return _cache(keys, values) or crowded(kept, _WAVES) or oversized(k, v, keys)


def refuses_attention(
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
    """Why not; None when `attention` is right."""
    if keys.dtype == torch.float32:
        return "the cache is float32"
    return _cache(keys, values) or _by_eight("keys", keys) or _by_eight("values", values) or oversized(q, keys)


def store(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start_slot: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> None:
    """Token t of k and v [B, H, T, D] into slot (start + t) % slots of keys and values [B, H, slots, D]."""
    if not k.shape[2] or not keys.numel():
        return
    k, v = dense(k), dense(v)
    k_offset, k_scale = (None if tensor is None else tensor.contiguous() for tensor in (k_offset, k_scale))
    arguments = _KV(
        k=k.data_ptr(), v=v.data_ptr(), start=start_slot.data_ptr(), k_offset=address(k_offset),
        k_scale=address(k_scale), keys=keys.data_ptr(), values=values.data_ptr(), v_scale=address(v_scale),
        k_batch=k.stride(0), k_head=k.stride(1), k_token=k.stride(2),
        v_batch=v.stride(0), v_head=v.stride(1), v_token=v.stride(2),
        **_strides(keys, values, v_scale), start_stride=_step(start_slot),
        batch=k.shape[0], heads=k.shape[1], tokens=k.shape[2], slots=keys.shape[2], k_channels=k.shape[3],
        v_channels=v.shape[3], k_dtype=code(k), v_dtype=code(v), cache_dtype=code(keys), offset_dtype=code(k_offset),
        k_scale_dtype=code(k_scale), v_scale_dtype=code(v_scale),
    )  # fmt: skip
    start("mms_kv_store", arguments, k.device)


def attention(
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
    """q [B, Hq, 1, D] over keys and values [B, Hk, slots, D] -> [B, Hq, 1, Dv]."""
    batch, heads, slots, channels = keys.shape
    wide, group = values.shape[3], q.shape[1] // heads
    out = q.new_empty((*q.shape[:3], wide))
    if not out.numel():
        return out
    q = dense(q)
    k_scale, sinks = (None if tensor is None else tensor.contiguous() for tensor in (k_scale, sinks))
    mask = None if mask is None else dense(mask)
    found = kernels(q.device)
    splits = found.mms_attention_splits(batch, heads, group, slots, _processors(q.device))
    scratch = q.new_empty(batch * heads * group * splits * (wide + 2), dtype=torch.float32)
    arguments = _ATTENTION(
        q=q.data_ptr(), keys=keys.data_ptr(), values=values.data_ptr(), length=length.data_ptr(),
        k_scale=address(k_scale), v_scale=address(v_scale), sinks=address(sinks), mask=address(mask),
        out=out.data_ptr(), scratch=scratch.data_ptr(), q_batch=q.stride(0), q_head=q.stride(1),
        **_strides(keys, values, v_scale), mask_batch=0 if mask is None else mask.stride(0),
        length_stride=_step(length), batch=batch, heads=heads, group=group, slots=slots, k_channels=channels,
        v_channels=wide, dtype=code(q), cache_dtype=code(keys), k_scale_dtype=code(k_scale),
        v_scale_dtype=code(v_scale), sinks_dtype=code(sinks), splits=splits, scale=scale, soft_cap=soft_cap,
    )  # fmt: skip
    start("mms_decode_attention", arguments, q.device)
    return out


def _cache(keys: Tensor, values: Tensor) -> str | None:
    if max(keys.shape[3], values.shape[3]) > CHANNELS:
        return f"heads of {max(keys.shape[3], values.shape[3])} channels: it takes {CHANNELS}"
    return strided("keys", keys) or strided("values", values)


def _by_eight(name: str, cache: Tensor) -> str | None:
    """Attention reads eight channels at once."""
    if any(step % 8 for step in (cache.shape[3], *cache.stride()[:3])) or cache.data_ptr() % (8 * cache.itemsize):
        return f"slots of {name} do not begin and end at multiples of eight channels"
    return None


def _strides(keys: Tensor, values: Tensor, v_scale: Tensor | None) -> dict[str, int]:
    """Of the cache, and of the values' scales: [B, H, slots] for int8, [H, 1] for fp8."""
    scales = {"scale_batch": 0, "scale_head": 0, "scale_slot": 0}
    if v_scale is not None and v_scale.dim() == 3:
        scales = dict(zip(scales, v_scale.stride(), strict=True))
    elif v_scale is not None:
        scales["scale_head"] = v_scale.stride(0)
    return scales | {
        "keys_batch": keys.stride(0), "keys_head": keys.stride(1), "keys_slot": keys.stride(2),
        "values_batch": values.stride(0), "values_head": values.stride(1), "values_slot": values.stride(2),
    }  # fmt: skip


def _step(counter: Tensor) -> int:
    """From one sequence's counter to the next one's; 0 where all share one."""
    return 0 if counter.shape[0] == 1 else counter.stride(0)


@cache
def _processors(device: torch.device) -> int:
    return 1 if device.type != "cuda" else int(torch.cuda.get_device_properties(device).multi_processor_count)
