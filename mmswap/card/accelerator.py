"""A card behind `torch.cuda`: NVIDIA and ROCm alike. Knows what is free on it, and not who wants it."""

from __future__ import annotations

import logging
import weakref
from typing import Protocol

from mmswap.card.backend import Backend
from mmswap.card.base import Card
from mmswap.card.budget import Reading, accelerator_free
from mmswap.units import format_bytes

log = logging.getLogger(__name__)


class PrivatePool(Protocol):
    """Holds bytes of the card that nobody else can get."""

    def scratch(self) -> int:
        """How many of them lie idle."""


class AcceleratorCard(Card):
    """`--card cuda[:i]`.

    Args:
        backend: `torch.cuda` in life, a stand-in under test.
        index: which device; None takes the largest one that is no part of the processor.
    """

    def __init__(self, backend: Backend, index: int | None) -> None:
        self.backend = backend
        self.index, self.choice = (index, "it was asked for") if index is not None else _largest(backend)
        found = backend.properties(self.index)
        self.spec = f"cuda:{self.index}"
        self.name = found.name
        self.device = backend.device(self.index)
        self.can_swap = True
        self._total = found.total
        self._pools: weakref.WeakSet[PrivatePool] = weakref.WeakSet()
        self._warned = False
        log.info("using %s, %s: %s", self.spec, self.name, self.choice)

    def total(self) -> int:
        return self._total

    def free(self) -> Reading:
        """Driver's free plus what torch has cached, less what sits unused in private pools. Never raises."""
        driver: tuple[int, int] | str
        try:
            driver = self.backend.driver_memory(self.index)
        except Exception as error:
            driver = f"asking for it failed with {type(error).__name__}: {error}"
        reading = accelerator_free(
            total=self._total,
            driver=driver,
            reserved=self.backend.reserved(self.index),
            allocated=self.backend.allocated(self.index),
            idle=sum(pool.scratch() for pool in self._pools),
        )
        if reading.doubtful and not self._warned:
            self._warned = True
            log.warning("%s: %s", self.spec, reading.reason)
        return reading

    def know(self, pool: PrivatePool) -> None:
        """Registers a private memory pool for as long as it lives: its idle bytes are not free to others."""
        self._pools.add(pool)


def _largest(backend: Backend) -> tuple[int, str]:
    """Index and reason: not integrated before integrated, then the most memory, then the first."""
    found = [backend.properties(index) for index in range(backend.count())]
    index = max(range(len(found)), key=lambda i: (not found[i].integrated, found[i].total, -i))
    if len(found) == 1:
        return index, "it is the only accelerator"
    listing = ", ".join(
        f"cuda:{i} {one.name} with {format_bytes(one.total)}{' (integrated)' if one.integrated else ''}"
        for i, one in enumerate(found)
    )
    return index, f"it is the largest of {listing}"
