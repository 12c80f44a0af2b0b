"""Who lies where: the model's weights on the card, the evictable ones in a pool, all of them in the card's ledger.

Decides the order in which units are given up. Used once, at load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from mmswap.card import Card, Reading
from mmswap.card.spill import ANSWER
from mmswap.config import SwapConfig
from mmswap.errors import DoesNotFit
from mmswap.llm.parts import Parts
from mmswap.measured import Load
from mmswap.swap.pool import SwapPool
from mmswap.units import format_apart, format_bytes
from mmswap.vision.tower import Tower

Say = Callable[[str], None]
log = logging.getLogger(__name__)


def place(model: Any, tower: Tower, parts: Parts, card: Card, swap: SwapConfig, say: Say) -> SwapPool | None:
    """Move `model` to `card`, book its bytes, and make the pool of units that a window may evict (None: no window).

    The ladder: an untied output head first (needed last in prefill), then the decoder layers from the last backwards.
    """
    units = list(parts.layers)
    if not parts.tied:
        units.append((parts.head_name, parts.head))
    towers = {id(module) for _, module in tower.modules}
    tower_bytes = weight_bytes(*(module for _, module in tower.modules))
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


def weight_bytes(*modules: nn.Module) -> int:
    """Bytes of all parameters and buffers below `modules`, each once."""
    return _bytes({id(tensor): tensor for module in modules for tensor in _weights(module)}.values())


def weigh(
    model: nn.Module, tower: Tower, predicted: int, before: Reading, card: Card, swap: SwapConfig, say: Say
) -> Load:
    """What the weights were thought to take, and took since the card gave `before`; the context is not known yet."""
    if swap.tower_on_cpu and card.can_swap:
        predicted -= weight_bytes(*(module for _, module in tower.modules))
    now = card.free()
    measured = (before.bytes - before.over) - (now.bytes - now.over)
    if not card.can_swap:  # the host's free memory moves for many reasons
        measured = weight_bytes(model)
    load = Load(max(0, predicted), max(0, measured), now.bytes, now.over, context=0, kv_bytes=0)
    foreseen, found = format_apart(load.weights_predicted, load.weights_measured)
    say(f"Weights: {foreseen} predicted, {found} measured; {format_bytes(now.bytes)} are free beside them.")
    return load


def require_room(model: nn.Module, card: Card, swap: SwapConfig, warn: Say) -> None:
    """Says if the weights, placed, are more than the budget; a real card might keep the rest in host memory.

    Raises:
        DoesNotFit: a simulated card that cannot hold them.
    """
    over = card.free().over
    if not over:
        return
    advice = "use a larger card or a smaller model"
    if not swap.tower_on_cpu:
        advice += ", or --no-mmproj-offload to keep the vision tower on the CPU"
    held = weight_bytes(model)
    if card.overfull():
        raise DoesNotFit("The model", held, max(0, held - over), advice)
    weights, beyond, room = format_apart(held, over, max(0, held - over))
    warn(
        f"The weights of {weights} are {beyond} over what this process may use of the card: {room} of them fit, and "
        f"the driver may keep the rest in host memory, which is slow. To mend it, {advice}."
    )


def answer_to_spill(layers: int) -> str:
    """What follows from a spill where windows evict `layers` units: -1 adaptive, N always N, 0 none."""
    if layers < 0:
        return ANSWER
    if layers > 0:
        return f"--mmproj-swap-layers {layers} is too few: raise it, or leave it out"
    return "nothing can be evicted here: use a smaller --context, smaller pictures or a larger card"


def _pool(model: Any, units: list[tuple[str, nn.Module]], card: Card, swap: SwapConfig, say: Say) -> SwapPool | None:
    if not card.can_swap:
        why = f"No units are made evictable: {card.name} has no memory of its own to make room in"
        _ignored(why, swap.layers, say)
        return None
    if swap.layers == 0:
        say("No units are made evictable: swapping is off (--mmproj-swap-layers 0).")
        return None
    if swap.tower_on_cpu:
        why = "Swapping is bypassed: the vision tower runs on the CPU (--no-mmproj-offload)"
        _ignored(why, swap.layers, say)
        return None
    pool = SwapPool(units, card, root=model)
    if swap.layers > len(pool.ladder):
        _warn(f"--mmproj-swap-layers {swap.layers} is more than there are: {len(pool.ladder)} units are evicted.", say)
    say(
        f"{len(pool.units)} units can be evicted, {format_bytes(pool.nbytes)} in all; {pool.ladder[0].name} goes first."
    )
    return pool


def _ignored(why: str, layers: int, say: Say) -> None:
    """No pool; and if units were asked for by number, that is said aloud."""
    if layers > 0:
        _warn(f"{why}, so --mmproj-swap-layers {layers} changes nothing.", say)
    else:
        say(f"{why}.")


def _warn(sentence: str, say: Say) -> None:
    say(sentence)
    log.warning(sentence)


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
