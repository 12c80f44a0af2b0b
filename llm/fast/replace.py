"""Norms and linear layers of a model that keeps its own forward, replaced in place for a few rows at a time.

`count = replace(parts)` is for models without a lean step. A prompt's many rows go through the module as it was, so
that what a prompt takes stays what was planned. Found by what they compute, no class by name.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.fast.norm import norm_of
from mmswap.llm.fast.sighting import is_norm
from mmswap.llm.parts import Parts

FEW = 8


def replace(parts: Parts) -> int:
    """Put ops in the place of what computes the same, in layers, last norm and head; how many there are."""
    around = [part for part in (parts.norm, parts.head) if part is not None]
    found = {part for whole in (*(layer for _, layer in parts.layers), *around) for part in whole.modules()}
    return sum(_replaced(part) for part in found)


def _replaced(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if "forward" in vars(module) or not isinstance(weight, nn.Parameter) or weight.is_meta:
        return False
    if type(module) is nn.Linear:
        vars(module)["forward"] = MethodType(_linear, module)
        return True
    if not is_norm(module):
        return False
    norm = norm_of(module, weight.new_empty(1, 1, weight.numel()))
    if norm.run is None:
        return False
    vars(module)["_as_op"] = (norm.eps, norm.offset, norm.late)
    vars(module)["forward"] = MethodType(_norm, module)
    return True


def _few(x: Tensor) -> bool:
    return 0 < x.numel() <= FEW * x.shape[-1]


def _linear(self: Any, x: Tensor) -> Tensor:
    found: Tensor
    if _few(x) and x.is_contiguous() and x.dtype == self.weight.dtype:
        found = torch.ops.mmswap.linear(x, self.weight, self.bias)
    else:
        found = type(self).forward(self, x)
    return found


def _norm(self: Any, x: Tensor) -> Tensor:
    found: Tensor
    if _few(x) and x.dtype == self.weight.dtype:
        found = torch.ops.mmswap.rms_norm(x, self.weight, *self._as_op)
    else:
        found = type(self).forward(self, x)
    return found
