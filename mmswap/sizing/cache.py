"""What a model's KV cache is made of, found by running its decoder on shapes. Knows no architecture by name.

decoder = shortened(parts, policy)        # the decoder with one layer of each kind: a dry run of it costs little
layout = layout_of(decoder, extra)        # a KvLayout for all layers
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import DynamicCache

from mmswap.config import SMALLEST_CHUNK
from mmswap.llm.parts import Parts
from mmswap.sizing.kv import KvLayout, KvRow
from mmswap.swap.dry_run import DryRun, calibrate
from mmswap.swap.replay import ARENA, Policy
from mmswap.swap.scratch import ScratchTable

_PAIR = ("keys", "values")


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


def layout_of(decoder: Decoder, extra: Mapping[str, Any] | None = None) -> KvLayout | None:
    """What the cache of all layers holds; None if the decoder cannot be run on shapes.

    Two short prompts tell: what differs between their caches grows with the text. A prefill's cost asks for them too.

    Args:
        extra: arguments that it needs beside embeddings: what cross attention looks at.
    """
    probes = [decoder.dry_run.prefill_peak("", SMALLEST_CHUNK * times, **(extra or {})).cache for times in (1, 2)]
    if any(cache is None for cache in probes):
        return None
    small, large = ([dict(_held(layer)) for layer in cache.layers] for cache in probes)
    rows: Counter[tuple[int, int, int | None, int | None]] = Counter()
    states = 0
    for count, before, after in zip(decoder.counts, small, large):
        for name, tensor in before.items():
            if not isinstance(tensor, Tensor):
                continue
            window = before.get("window") if name in _PAIR else None
            grown = after[name].numel() - tensor.numel()
            if name not in _PAIR and not grown:
                states += count * tensor.numel() * tensor.element_size()
                continue
            width = tensor.shape[-1]
            if grown and window is None:
                rows[grown // SMALLEST_CHUNK // width, width, None, None] += count
            else:
                rows[tensor.shape[1], width, window, None if window is not None else tensor.shape[-2]] += count
    return KvLayout(
        tuple(KvRow(heads, width, n, window, fixed) for (heads, width, window, fixed), n in rows.items() if n), states
    )


def _held(layer: Any) -> Iterator[tuple[str, Any]]:
    yield "window", getattr(layer, "sliding_window", None)
    for name, value in vars(layer).items():
        for index, tensor in enumerate(pytree.tree_leaves(value)):
            if isinstance(tensor, Tensor) and tensor.numel() > 1:  # counters are no contents
                yield name if index == 0 else f"{name}.{index}", tensor


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
