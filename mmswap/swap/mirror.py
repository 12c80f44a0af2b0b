"""The host's copies of evictable units, each made once, at the first eviction. Knows bytes, not plans.

mirrors = Mirrors();  mirrors.ensure(unit, slab);  mirrors[unit] -> uint8 on the host
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mmswap.swap.unit import Unit


def pageable(nbytes: int) -> Tensor:
    """Ordinary host memory of exactly `nbytes`."""
    with torch.inference_mode(False):
        return torch.empty(nbytes, dtype=torch.uint8)


class Host(Protocol):
    """Where mirrors get their memory."""

    def allocate(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] on the host, exactly."""

    def locked(self) -> int:
        """Bytes that are page-locked now: a driver may count them as this process's host memory."""

    def release(self) -> None:
        """Nobody uses what was allocated any more."""


class PageableHost:
    """Ordinary memory."""

    def allocate(self, nbytes: int) -> Tensor:
        return pageable(nbytes)

    def locked(self) -> int:
        return 0

    def release(self) -> None:
        """Ordinary memory goes with its tensor."""


class Mirrors:
    """Mirror of each unit that was ever evicted.

    Args:
        host: where their memory comes from (page-locked, where that pays).
    """

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or PageableHost()
        self._copies: dict[Unit, Tensor] = {}
        self._versions: dict[Unit, tuple[int, ...]] = {}

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._copies

    def __getitem__(self, unit: Unit) -> Tensor:
        return self._copies[unit]

    @property
    def nbytes(self) -> int:
        return sum(copy.numel() for copy in self._copies.values())

    @property
    def locked(self) -> int:
        """The page-locked part of it, whole pages."""
        return self._host.locked()

    def ensure(self, unit: Unit, slab: Tensor) -> None:
        """Makes the unit's mirror if there is none, or if its weights were written since. The unit must be at home."""
        assert not unit.missing
        unit.check()
        versions = unit.versions()
        if self._versions.get(unit) == versions:
            return
        copy = self._copies.get(unit)
        if copy is None:
            copy = self._host.allocate(unit.nbytes)
        copy.copy_(slab)
        self._copies[unit] = copy
        self._versions[unit] = versions

    def clear(self) -> None:
        """Gives the host memory back. Only while every unit is at home."""
        self._host.release()
        self._copies.clear()
        self._versions.clear()
