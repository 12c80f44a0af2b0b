"""Rotary positions as a model turns its queries and keys, found by trying. Knows the usual ways, not who uses which.

`turn_of(attention, before, after, rope)` says which way leads from the heads before to those after.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor, nn

from mmswap.llm.fast.calls import bind
from mmswap.llm.fast.norm import close
from mmswap.llm.fast.refused import Refused

Pair = tuple[Tensor, Tensor]
Turn = Callable[[Tensor, Tensor, Tensor, Tensor], Pair]
"""(q [B,Hq,1,D], k [B,Hk,1,D], cos, sin) -> the same, turned."""


def turn_of(attention: nn.Module, before: Pair, after: Pair, rope: Pair | None) -> Turn | None:
    """How `attention` turns its heads; None if it leaves them as they are.

    Raises:
        Refused: no way that is known leads there.
    """
    if all(close(old, new) for old, new in zip(before, after)):
        return None
    if rope is None:
        raise Refused("its heads change between projection and attention, and no positions were given")
    tried: list[Turn | None] = [_half_split(before, rope), _own(attention)]
    for turn in tried:
        if turn is not None and _leads(turn, before, after, rope):
            return turn
    raise Refused("its rotary positions are of an unknown kind")


def _half_split(before: Pair, rope: Pair) -> Turn | None:
    cos, sin = rope
    if cos.dim() != 3 or cos.shape[-1] > before[0].shape[-1]:
        return None
    run = bind("rotary", *before, cos, sin, [])
    return lambda q, k, cos, sin: run(q, k, cos, sin, [])


def _own(attention: nn.Module) -> Turn | None:
    """The function that the model's own file defines."""
    function: Turn | None = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    return function


def _leads(turn: Turn, before: Pair, after: Pair, rope: Pair) -> bool:
    try:
        turned = turn(*before, *rope)
    except (TypeError, RuntimeError, ValueError):
        return False
    return isinstance(turned, tuple) and len(turned) == 2 and all(close(new, old) for new, old in zip(turned, after))
