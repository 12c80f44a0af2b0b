"""Image embeddings that were computed before, kept on the host and bounded by bytes. Knows no model and no card.

The key is a hash of everything the tower is called with, all of it: two pictures never share an entry.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def content_key(values: Iterable[Any]) -> str:
    """SHA-256 over the dtypes, shapes and bytes of all tensors in `values`, and the `repr` of everything else."""
    digest = hashlib.sha256()
    for leaf in pytree.tree_leaves(list(values)):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def tensor_bytes(tree: Any) -> int:
    """Bytes of all tensors in a tree of lists, tuples, dicts and model outputs."""
    return sum(
        leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)
    )


class FeatureCache:
    """Least recently used embeddings, at most `limit` bytes of them; larger ones are not kept."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._entries: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.used = 0

    def get(self, key: str) -> Any | None:
        """The features under `key` (on the host), or None."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: str, features: Any) -> None:
        """Keep a host copy of `features`."""
        size = tensor_bytes(features)
        if size > self.limit or key in self._entries:
            return
        kept = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), features)
        self._entries[key] = (kept, size)
        self.used += size
        while self.used > self.limit:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.used -= dropped
