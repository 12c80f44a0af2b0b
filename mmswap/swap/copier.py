"""How bytes come back from a mirror to a slab. `HostCopier` is the simulated card's; those of real cards are in
`cuda_copier`."""

from __future__ import annotations

import ctypes
import time
from typing import Protocol

from torch import Tensor

from mmswap.swap.unit import Unit


class Copier(Protocol):
    """One restore at a time: `begin`, `copy` for each unit in order of use, then `finish`.

    Attributes:
        busy: whether copying keeps the calling thread busy, so that only another thread can do it behind.
    """

    @property
    def busy(self) -> bool: ...

    def begin(self) -> None:
        """Before the first copy: what ran in the lent bytes must be over when they are overwritten."""

    def copy(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        """Copies, or enqueues the copy of, one unit."""

    def copy_plainly(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        """The same by the simplest route there is, when `copy` has failed."""

    def wait(self, unit: Unit) -> None:
        """What the calling thread computes from now on sees the unit's bytes."""

    def finish(self) -> float | None:
        """Returns once every copy has arrived; milliseconds of copying, or None if the host's clock tells."""

    def waited(self) -> float:
        """Milliseconds that the card's computation stood waiting for units, beyond what the host waited."""


class HostCopier:
    """Plain memory copies, as slow as the simulated link."""

    busy = True

    def __init__(self, link_rate: int | None) -> None:
        self._rate = link_rate
        self._due = 0.0

    def begin(self) -> None:
        self._due = time.perf_counter()

    def copy(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        slab.copy_(mirror)
        if self._rate is not None:
            self._due += slab.numel() / self._rate
            time.sleep(max(0.0, self._due - time.perf_counter()))

    def copy_plainly(self, unit: Unit, slab: Tensor, mirror: Tensor) -> None:
        ctypes.memmove(slab.data_ptr(), mirror.data_ptr(), slab.numel())

    def wait(self, unit: Unit) -> None:
        """Host copies are over when they return."""

    def finish(self) -> float | None:
        return None

    def waited(self) -> float:
        return 0.0
