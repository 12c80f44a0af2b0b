"""Attention of another kind (linear, gated, latent): called as the module that it is, with this step's arguments.

`opaque_attention(call, ropes, why)` keeps what it was given once and replaces what changes from token to token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.fast.refused import Refused
from mmswap.llm.fast.sighting import Call


@dataclass(slots=True, eq=False)
class Opaque:
    """`constant` goes in as it is; hidden states, cache, positions by the names in which the module takes them."""

    module: nn.Module
    why: str
    constant: dict[str, Any]
    hidden: str | None
    cache: str | None
    positions: str | None
    pair: tuple[str, int] | None

    def __call__(self, h: Tensor, step: Any) -> Tensor:
        results = [self._run(part, one) for part, one in step.apart(h)]
        return results[0] if len(results) == 1 else torch.cat(results)

    def _run(self, h: Tensor, step: Any) -> Tensor:
        given = dict(self.constant)
        if self.cache is not None:
            given[self.cache] = step.cache
        if self.positions is not None:
            given[self.positions] = step.at
        if self.pair is not None:
            given[self.pair[0]] = step.ropes[self.pair[1]]
        if self.hidden is not None:
            given[self.hidden] = h
        result = self.module(**given) if self.hidden is not None else self.module(h, **given)
        return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


def opaque_attention(call: Call, ropes: list[Any], why: str) -> Opaque:
    """The module as it is.

    Raises:
        Refused: it is given something that may change with every token and is not known here.
    """
    hidden = cache = positions = pair = None
    constant: dict[str, Any] = {}
    if len(call.args) > 1:
        raise Refused(f"{why}, and it takes its arguments by position")
    for name, value in call.kwargs.items():
        index = next((i for i, rope in enumerate(ropes) if _is_pair(value, rope.output)), None)
        if index is not None:
            pair = (name, index)
        elif hasattr(value, "get_seq_length"):
            cache = name
        elif isinstance(value, Tensor) and name == "position_ids":
            positions = name
        elif isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3 and hidden is None:
            hidden = name
        elif value is None or isinstance(value, (bool, int, float, str)):
            constant[name] = value
        else:
            raise Refused(f"{why}, and it is given {name}")
    if (hidden is None) == (not call.args):
        raise Refused(f"{why}, and where it takes its hidden states is not clear")
    return Opaque(call.module, why, constant, hidden, cache, positions, pair)


def _is_pair(value: Any, pair: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and value[0] is pair[0] and value[1] is pair[1]
