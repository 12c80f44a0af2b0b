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
    towers = {id(module) for _, module in tower.modules}
    tower_bytes = _bytes(tensor for _, module in tower.modules for tensor in _weights(module))
    stays = towers if swap.tower_on_cpu else set()
    _move(model, card, skip={id(module) for _, module in units} | stays)
    pool = _pool(model, units, card, swap, say)
    _move(model, card, skip=stays)  # what is no unit's after all, or all units where there is no pool
    on_card = _bytes(_weights(model, skip=stays))
    tower_on_card = 0 if swap.tower_on_cpu else tower_bytes
    rest = on_card - tower_on_card - (pool.nbytes if pool is not None else 0)
    if tower_on_card:
        card.claim("vision tower", tower_on_card)
    card.claim("language model" if pool is None else "embeddings and norms", max(0, rest))
    where = "on the CPU" if swap.tower_on_cpu else "among them"
    say(f"Weights on {card.name}: {format_bytes(on_card)}; the vision tower's {format_bytes(tower_bytes)} {where}.")
    return pool


def _pool(model: Any, units: list[tuple[str, nn.Module]], card: Card, swap: SwapConfig, say: Say) -> SwapPool | None:
    if not card.can_swap:
        say(f"No units are made evictable: {card.name} has no memory of its own to make room in.")
        return None
    if swap.layers == 0:
        say("No units are made evictable: swapping is off (--mmproj-swap-layers 0).")
        return None
    if swap.tower_on_cpu:
        say("Swapping is bypassed: the vision tower runs on the CPU (--no-mmproj-offload).")
        return None
    pool = SwapPool(units, card, root=model)
    say(
        f"{len(pool.units)} units can be evicted, {format_bytes(pool.nbytes)} in all; {pool.ladder[0].name} goes first."
    )
    return pool


def _move(model: Any, card: Card, skip: Iterable[int]) -> None:
    for tensor in _weights(model, skip):
        if tensor.device != card.device:
            tensor.data = tensor.data.to(card.device)


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
