"""A decoder as one chain of blocks: every block adds something to the stream of hidden states.

    h = first.norm(x);  for each block:  y = body(h);  h, x = norm of the next one over (x + y), x + y

so that adding and norming is one op wherever it can be. `blocks_of(call, sighting, ropes)` reads one layer's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mmswap.llm.fast.attention import attention_of
from mmswap.llm.fast.mlp import mlp_of
from mmswap.llm.fast.norm import Norm, norm_of
from mmswap.llm.fast.opaque import opaque_attention
from mmswap.llm.fast.refused import Refused
from mmswap.llm.fast.sighting import Call, Sighting, is_norm

Body = Callable[[Tensor, Any], Tensor]

_PASSES = (nn.Dropout, nn.Identity)


@dataclass(slots=True, eq=False)
class Block:
    """x + post(body(pre(x))); either norm may be missing."""

    pre: Norm | None
    body: Body
    post: Norm | None


@dataclass(slots=True, eq=False)
class Together:
    """Attention and MLP side by side on the same input: their sum."""

    one: Body
    other: Body

    @property
    def why(self) -> str | None:
        """Why its attention is called as it is; None if it is ours."""
        return getattr(self.one, "why", None) or getattr(self.other, "why", None)

    def __call__(self, h: Tensor, step: Any) -> Tensor:
        return self.one(h, step) + self.other(h, step)


def blocks_of(layer: Call, sighting: Sighting, ropes: list[Any]) -> list[Block]:
    """The blocks of one layer, by the order in which it called its parts.

    Raises:
        Refused: another order, parts that were not used, weights beside the parts.
    """
    calls = [call for call in sighting.children(layer.module) if not isinstance(call.module, _PASSES)]
    _nothing_else(layer.module, calls)
    order = "".join(_kind(call, sighting) for call in calls)
    norms = [norm_of(call.module, call.given) if is_norm(call.module) else None for call in calls]

    def body(index: int) -> Body:
        call = calls[index]
        if order[index] == "M":
            return mlp_of(call, sighting)
        try:
            return attention_of(call, sighting, ropes)
        except Refused as why:
            return opaque_attention(call, ropes, str(why))

    if order == "NANM":
        return [Block(norms[0], body(1), None), Block(norms[2], body(3), None)]
    if order == "NANNMN":
        return [Block(norms[0], body(1), norms[2]), Block(norms[3], body(4), norms[5])]
    if order == "ANMN":
        return [Block(None, body(0), norms[1]), Block(None, body(2), norms[3])]
    if order == "NAM" and calls[1].given is calls[2].given:
        return [Block(norms[0], Together(body(1), body(2)), None)]
    raise Refused(f"its layers call their parts in the order {order or 'of none'}")


def _kind(call: Call, sighting: Sighting) -> str:
    if is_norm(call.module):
        return "N"
    mixes = "position_embeddings" in call.kwargs or any(look.module is call.module for look in sighting.looks)
    return "A" if mixes or _holds_state(call) else "M"


def _holds_state(call: Call) -> bool:
    """Whether it was given a cache: attention of any kind."""
    return any(hasattr(value, "get_seq_length") for value in call.kwargs.values())


def _nothing_else(layer: nn.Module, calls: list[Call]) -> None:
    called = [call.module for call in calls]
    if len(set(called)) != len(called):
        raise Refused("a part of its layers is called twice")
    for name, child in layer.named_children():
        if child not in called and any(True for _ in child.parameters()):
            raise Refused(f"{name} of its layers was not used by a plain token")
    own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    if own:
        raise Refused(f"its layers have {own[0][0]} beside their parts")
