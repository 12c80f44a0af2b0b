"""Who lies where: the model's weights on the card, the evictable ones in a pool, all of them in the card's ledger.

Decides the order in which units are given up. Used once, at load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from mmswap.card import Card
from mmswap.config import SwapConfig
from mmswap.llm.parts import Parts
from mmswap.swap.pool import SwapPool
from mmswap.units import format_bytes
from mmswap.vision.tower import Tower

Say = Callable[[str], None]


def place(model: Any, tower: Tower, parts: Parts, card: Card, swap: SwapConfig, say: Say) -> SwapPool | None:
    """Move `model` to `card`, book its bytes, and make the pool of units that a window may evict (None: no window).

    The ladder: an untied output head first (needed last in prefill), then the decoder layers from the last backwards.
    """
    units = list(parts.layers)
    if not parts.tied:
        units.append((parts.head_name, parts.head))
    movable = {id(module) for _, module in units}
    on_card = _weights(model, skip=movable | ({id(m) for _, m in tower.modules} if swap.tower_on_cpu else set()))
    for tensor in on_card:
        tensor.data = tensor.data.to(card.device)
    tower_bytes = _bytes(tensor for _, module in tower.modules for tensor in _weights(module))
    if not swap.tower_on_cpu:
        card.claim("vision tower", tower_bytes)
    rest = _bytes(on_card) - (0 if swap.tower_on_cpu else tower_bytes)
    card.claim("embeddings and norms", rest)
    pool = _pool(units, card, swap, say)
    if pool is None:
        weights = [tensor for _, module in units for tensor in _weights(module)]
        for tensor in weights:
            tensor.data = tensor.data.to(card.device)
        card.claim("decoder layers", _bytes(weights))
    say(f"Weights on the card: {format_bytes(rest)} of embeddings and norms, {_where(tower_bytes, swap)}.")
    return pool


def _pool(units: list[tuple[str, nn.Module]], card: Card, swap: SwapConfig, say: Say) -> SwapPool | None:
    if not card.can_swap:
        say(f"No units are made evictable: {card.name} has no memory of its own to make room in.")
        return None
    if swap.layers == 0:
        say("No units are made evictable: swapping is off (--mmproj-swap-layers 0).")
        return None
    if swap.tower_on_cpu:
        say("Swapping is bypassed: the vision tower runs on the CPU (--no-mmproj-offload).")
        return None
    pool = SwapPool(units, card)
    total = sum(unit.nbytes for unit in pool.units)
    say(f"{len(pool.units)} units can be evicted, {format_bytes(total)} in all; first {pool.ladder[0].name}.")
    return pool


def _where(tower_bytes: int, swap: SwapConfig) -> str:
    place = "on the CPU" if swap.tower_on_cpu else "on the card too"
    return f"the vision tower's {format_bytes(tower_bytes)} {place}"


def _weights(module: nn.Module, skip: Iterable[int] = ()) -> list[torch.Tensor]:
    """Parameters and buffers below `module`, each once, without those below modules whose `id` is in `skip`."""
    found: dict[int, torch.Tensor] = {}
    queue = [module]
    while queue:
        current = queue.pop()
        if id(current) in skip:
            continue
        for tensor in (*current.parameters(recurse=False), *current.buffers(recurse=False)):
            found[id(tensor)] = tensor
        queue.extend(current.children())
    return list(found.values())


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
