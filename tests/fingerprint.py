"""What a window must leave as it was: of a model: bytes, strides, ties, hooks, addresses.

before = fingerprint(model);  ...;  assert fingerprint(model) == before
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(model: nn.Module, *, addresses: bool = False) -> dict[str, Any]:
    """By name: device, dtype, shape, stride, requires_grad and the hash of the bytes; plus ties and hooks."""
    found: dict[str, Any] = {}
    homes: dict[tuple[int, int], list[str]] = defaultdict(list)
    objects: dict[int, list[str]] = defaultdict(list)
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        found[name] = _one(tensor)
        objects[id(tensor)].append(name)
        if tensor.numel():
            homes[tensor.untyped_storage().data_ptr(), tensor.storage_offset()].append(name)
        if addresses:
            found[f"{name} @"] = tensor.data_ptr()
    found["same object"] = sorted(names for names in objects.values() if len(names) > 1)
    found["same memory"] = sorted(names for names in homes.values() if len(names) > 1)
    found["hooks"] = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())
    return found


def _one(tensor: Tensor) -> tuple[Any, ...]:
    assert not tensor.is_meta
    flat = tensor.detach().cpu().contiguous().reshape(-1).clone()  # `numpy()` would pin the storage of the original
    digest = hashlib.sha256(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"").hexdigest()
    return str(tensor.device), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.requires_grad, digest
