"""Layers of a lean step that work on the same input become one, in the model itself: its prompt gains as well.

`count = merge(model, lean)`, then open the step anew. Knows blocks, no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from mmswap.llm.fast.attention import Attention
from mmswap.llm.fast.blocks import Together
from mmswap.llm.fast.mlp import Gated
from mmswap.llm.fast.part import joined
from mmswap.llm.fast.step import LeanStep


def merge(model: nn.Module, lean: LeanStep) -> int:
    """Join query, key and value, gate and up wherever that gives the same numbers; how many layers became parts."""
    places = {child: (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    count = 0
    for sides in _sides(lean):
        parts = joined(sides) if len(set(sides)) == len(sides) else None
        for side, part in zip(sides, parts or ()):
            parent, name = places[side]
            setattr(parent, name, part)
            count += 1
    return count


def _sides(lean: LeanStep) -> Iterator[tuple[nn.Module, ...]]:
    for block in lean.blocks:
        bodies: list[Any] = [block.body]
        if isinstance(block.body, Together):
            bodies = [block.body.one, block.body.other]
        for body in bodies:
            if isinstance(body, (Attention, Gated)):
                yield body.sides
