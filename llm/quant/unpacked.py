"""A tensor that is unpacked when it is used: for code that asks a packed layer for its `weight`. Knows no layout.

weight = Unpacked((out, in), torch.float16, device, unpack)
weight.dtype, weight.shape                      # free
functional.linear(x, weight)                    # calls `unpack` and computes with what it gives
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Unpacked(Tensor):
    """Shape, dtype and device of what `unpack()` would give; any operation on it is one on that. It holds no bytes."""

    _unpack: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, device: torch.device, unpack: Callable[[], Tensor]
    ) -> Unpacked:
        made: Unpacked = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        made._unpack = unpack
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Unpacked(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Unpacked, lambda one: one._unpack(), (args, kwargs or {}))
        return func(*args, **kwargs)
