"""A tower in another dtype than its language model: float16 ends at 65504, and activations inside towers do not.

`keep_in_range(model, torch.bfloat16)` changes the tower of a float16 model, on meta before its weights are loaded or
live: what goes in becomes that dtype, what comes out float16 again. Knows no card.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mmswap.vision.tower import METHOD, find_tower

NARROW = torch.float16
_kinds: dict[tuple[type, bool], type] = {}


def keep_in_range(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the tower of a float16 model compute in `dtype`.

    Raises:
        PartsNotFound: the model has no tower.
    """
    tower = find_tower(model)
    names = [name for name, _ in tower.modules]
    for _, module in tower.modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype == NARROW:
                tensor.data = tensor.data.to(dtype)
        module.register_forward_pre_hook(partial(_widen, dtype), with_kwargs=True)
    asked = {id(owner) for owner, method in tower.entries if method == METHOD}
    if not asked:
        tower.modules[-1][1].register_forward_hook(_narrow)
    for path, module in list(model.named_modules()):
        if any(not path or name.startswith(f"{path}.") for name in names):
            kind, gives = type(module), id(module) in asked
            module.__class__ = _kinds.setdefault((kind, gives), _narrow_kind(kind, gives))


def _narrow_kind(kind: type, gives: bool) -> type:
    """The class of a module around the tower: its dtype is the language model's, whatever it meets first inside, and
    the features that it gives (if it does) are float16."""
    changed: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    if hasattr(kind, "dtype"):
        changed["dtype"] = property(lambda _: NARROW)
    if gives:
        changed[METHOD] = _narrowing(getattr(kind, METHOD))
    return type(kind.__name__, (kind,), changed)


def _narrowing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def get_image_features(*args: Any, **kwargs: Any) -> Any:
        return _to(NARROW, original(*args, **kwargs))

    return get_image_features


def _widen(dtype: torch.dtype, _: nn.Module, args: Any, kwargs: Any) -> Any:
    return _to(dtype, (args, kwargs))


def _narrow(_: nn.Module, __: Any, features: Any) -> Any:
    return _to(NARROW, features)


def _to(dtype: torch.dtype, tree: Any) -> Any:
    """Every tensor of floats in `dtype`."""
    return pytree.tree_map_only(Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, tree)
