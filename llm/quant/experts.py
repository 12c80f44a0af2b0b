"""How an experts' module of transformers computes once its weights are packed. Knows how it routes, no family.

`pack_experts(module)` gives the module a forward that sorts its rows by expert and asks `QuantStack` for each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmswap.llm.quant.stack import QuantStack


def pack_experts(module: nn.Module) -> None:
    """Let a module with `QuantStack`s compute with them; one that does not say how it computes is left as it is.

    There the stacks are unpacked whole wherever its code names them, which is right and slow.
    """
    if hasattr(module, "has_gate") and not isinstance(module, _Routed):
        kind = type(module)
        known = {"forward": _forward, "__module__": kind.__module__}
        module.__class__ = _kinds.setdefault(kind, type(kind.__name__, (_Routed, kind), known))


class _Routed:
    """Mark of the classes that `pack_experts` makes."""


_kinds: dict[type, type] = {}


def _forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As transformers' own: [T, H], experts of each token [T, k], their weights [T, k] -> [T, H]."""
    tokens, active = top_k_index.shape
    experts, order = torch.sort(top_k_index.reshape(-1), stable=True)
    rows = hidden_states[order // active]
    if self.has_gate:
        inner = self._apply_gate(_linear(self, "gate_up_proj", rows, experts))
    else:
        inner = self.act_fn(_linear(self, "up_proj", rows, experts))
    result = _linear(self, "down_proj", inner, experts)
    if getattr(self, "has_post_expert_norm", False):
        result = self.post_expert_norm(result)
    weighted = result * top_k_weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(weighted).index_copy_(0, order, weighted)
    return back.view(tokens, active, -1).sum(1).to(hidden_states.dtype)


def _linear(module: Any, name: str, x: Tensor, experts: Tensor) -> Tensor:
    weight, bias = getattr(module, name), getattr(module, f"{name}_bias", None)
    if isinstance(weight, QuantStack):
        return weight.linear(x, experts, bias)
    numbers, counts = torch.unique_consecutive(experts, return_counts=True)  # a plain stack beside a packed one
    made = []
    for index, part in zip(numbers.tolist(), torch.split(x, counts.tolist())):
        own = weight[index].t() if module.is_transposed else weight[index]
        made.append(functional.linear(part, own, None if bias is None else bias[index]))
    return torch.cat(made)
