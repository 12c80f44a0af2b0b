"""Puts a pool's units on a card: the arena, the mirrors and the copier that belong together. The one place that knows
which kind of card takes which."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmswap.card import AcceleratorCard, Card, HostCard, SimulatedCard
from mmswap.errors import DoesNotFit
from mmswap.swap.arena import Arena, SimulatedArena
from mmswap.swap.copier import Copier, HostCopier
from mmswap.swap.cuda_arena import CudaArena
from mmswap.swap.cuda_copier import RingCopier, StreamCopier
from mmswap.swap.mirror import Mirrors, pageable
from mmswap.swap.pinning import PinnedHost
from mmswap.swap.unit import Unit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where units stand, where their copies are, and how those come back."""

    arena: Arena
    mirrors: Mirrors
    copier: Copier


def make_ground(card: Card, ladder: Sequence[Unit]) -> Ground:
    """Moves the units into slabs on the card, adjacent in ladder order.

    Raises:
        TypeError: a card that cannot swap.
    """
    if isinstance(card, SimulatedCard):
        arena = SimulatedArena([unit.nbytes for unit in ladder])
        for unit, slab in zip(ladder, arena.slabs):
            unit.gather(slab)
            unit.settle_in(slab)
        return Ground(arena, Mirrors(), HostCopier(card.link_rate()))
    if isinstance(card, AcceleratorCard):
        return _on_accelerator(card, ladder)
    raise TypeError(f"{card!r} has no arena")


def _on_accelerator(card: AcceleratorCard, ladder: Sequence[Unit]) -> Ground:
    backend, index = card.backend, card.index
    total = sum(unit.nbytes for unit in ladder)
    if any(slot.tensor.device == card.device for unit in ladder for slot in unit.slots) and card.free().bytes < total:
        _stage(ladder)  # they are on the card already, and it cannot hold them twice
        backend.empty_cache()
    try:
        arena = CudaArena(backend, index, [unit.nbytes for unit in ladder])
    except torch.OutOfMemoryError as error:
        advice = "use a larger card or a smaller model"
        raise DoesNotFit("Holding the evictable layers on the card", total, card.free().bytes, advice) from error
    for unit, slab in zip(ladder, arena.slabs):
        unit.gather(slab)
        unit.settle_in(slab)
    backend.empty_cache()
    card.know(arena)
    if not arena.adjacent:
        log.warning("the allocator scatters the slabs (see PYTORCH_CUDA_ALLOC_CONF): lent bytes are not in one piece")
    if backend.shares_pinned():
        return Ground(arena, Mirrors(), RingCopier(backend, index))
    host = PinnedHost(backend, index, limit=HostCard().total() // 2)
    return Ground(arena, Mirrors(host), StreamCopier(backend, index, host))


def _stage(ladder: Sequence[Unit]) -> None:
    """Takes the units to the host, one after the other."""
    for unit in ladder:
        aside = pageable(unit.nbytes)
        unit.gather(aside)
        unit.settle_in(aside)
