"""Writing keys and values into a cache on the processor: by slices, whose place Python knows. Knows no attention."""

from __future__ import annotations

import torch
from torch import Tensor

from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.kv_reference import quantised, shifted, token_scales


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
    """One slice of the ring; two where the tokens go around its end."""
    slots, tokens = keys.shape[2], k.shape[2]
    first = int(start)
    if tokens > slots:
        first, tokens = first + tokens - slots, slots
        k, v = k[:, :, -slots:], v[:, :, -slots:]
    first %= slots
    if keys.dtype.itemsize == 1:
        k = quantised(shifted(k, k_offset), None if k_scale is None else k_scale.unsqueeze(1), keys.dtype)
        by = None if v_scale is None else v_scale.unsqueeze(1)
        if keys.dtype == torch.int8:
            assert v_scale is not None
            scales = token_scales(v, v_scale.dtype)
            _put(v_scale, first, scales)
            by = scales.unsqueeze(-1)
        v = quantised(v, by, values.dtype)
    _put(keys, first, k)
    _put(values, first, v)


def _put(cache: Tensor, first: int, rows: Tensor) -> None:
    """The rows from slot `first` on, and around the end."""
    tokens, slots = rows.shape[2], cache.shape[2]
    if tokens == 1:
        cache.select(2, first).copy_(rows.select(2, 0))
        return
    fit = min(tokens, slots - first)
    cache.narrow(2, first, fit).copy_(rows.narrow(2, 0, fit))
    if fit < tokens:
        cache.narrow(2, 0, tokens - fit).copy_(rows.narrow(2, fit, tokens - fit))


def _refuses(
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    k_offset: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> str | None:
    if start.shape[0] != 1:
        return "every row of the batch begins at its own slot"
    return None if k.numel() and v.numel() and keys.numel() else "there is nothing to store"


IMPLEMENTATIONS = {"kv_store": Implementation(kv_store, _refuses)}
