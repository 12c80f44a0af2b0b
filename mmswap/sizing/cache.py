"""A decoder that is cheap to run on shapes, because layers repeat. Knows no architecture by name.

decoder = shortened(parts, policy)        # with one layer of each kind
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import DynamicCache

from mmswap.llm.parts import Parts
from mmswap.swap.dry_run import DryRun, calibrate
from mmswap.swap.replay import ARENA, Policy
from mmswap.swap.scratch import ScratchTable


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder for dry runs: `dry_run` is of one with the first `kept` of its `layers` layers.

    `counts`: for each kept layer, how many layers of the whole decoder are like it (0: an earlier one stands for it).
    """

    dry_run: DryRun
    kept: int
    counts: tuple[int, ...]
    layers: int


def shortened(parts: Parts, policy: Policy, scratch: ScratchTable | None = None) -> Decoder:
    """The decoder cut behind the first layer of its last new kind: layers of a kind are alike in all that costs.

    Args:
        scratch: what a real card's kernels take for themselves; by default `calibrate(policy)`.
    """
    layers = [layer for _, layer in parts.layers]
    kinds = _kinds(parts.decoder, layers)
    kept = max(kinds.index(kind) for kind in kinds) + 1
    alike = Counter(kinds)
    counts = tuple(alike[kind] if kinds.index(kind) == index else 0 for index, kind in enumerate(kinds[:kept]))
    # What the host's kernels take for themselves does not count on a simulated card: nothing need be measured for it.
    table = ScratchTable() if policy is ARENA else scratch or calibrate(policy)
    dry_run = DryRun(_cut(parts.decoder, layers[0], kept), policy=policy, scratch=table)
    return Decoder(dry_run, kept, counts, len(layers))


def _kinds(decoder: Any, layers: list[nn.Module]) -> list[Hashable]:
    """What tells layers apart: their weights' shapes, and the kind of cache that each keeps."""
    caches = DynamicCache(config=decoder.config).layers
    kinds: list[Hashable] = []
    for index, layer in enumerate(layers):
        cache = caches[index] if index < len(caches) else None
        shapes = tuple((name, tuple(weight.shape)) for name, weight in layer.named_parameters())
        kinds.append((type(layer), shapes, type(cache), getattr(cache, "sliding_window", None)))
    return kinds


def _cut(decoder: nn.Module, first: nn.Module, kept: int) -> nn.Module:
    """The same decoder, weights and all, with `kept` layers; the one that it is made of is left as it is."""
    short = copy.copy(decoder)
    short.__dict__["_modules"] = children = dict(decoder._modules)
    for name, child in children.items():
        if child is None or not any(part is first for part in child.modules()):
            continue
        if isinstance(child, nn.ModuleList) and child[0] is first:
            children[name] = nn.ModuleList(list(child)[:kept])
        else:
            children[name] = _cut(child, first, kept)
    return short
