"""Where the slabs of a pool lie: one contiguous region, slabs adjacent in ladder order. Knows no module and no plan.

`Arena` is what the window needs of it; `SimulatedArena` is host memory whose lent bytes are poisoned and whose use is
counted. The arena of a real card is in `cuda_arena`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from mmswap.swap.layout import ALIGN
from mmswap.swap.replay import growth
from mmswap.swap.tracker import LiveTracker

POISON = 0xFF  # NaN in fp16, bf16 and fp32


@dataclass(frozen=True, slots=True)
class Usage:
    """What the code inside the window took: most bytes alive at once, and bytes taken beyond the lent ones."""

    peak: int = 0
    growth: int = 0

    def beyond(self, lent: int, room: int) -> int:
        """Bytes taken beyond what there was: `lent` ones, and `room` beside them; below 0 where that much was over
        already, and the lent bytes had to pay for it."""
        unpaid = max(0, min(self.peak, lent) - max(0, lent + room)) if room < 0 else 0
        return max(0, self.growth - max(0, room)) + unpaid


class Arena(ABC):
    """Slabs in ladder order.

    Attributes:
        slabs: uint8 tensors, one per unit, each at its own fixed address.
        unbinds: whether tensors must be pointed elsewhere while their slab is lent.
    """

    slabs: list[Tensor]
    unbinds: bool

    @abstractmethod
    def is_home(self, index: int) -> bool:
        """Whether a slab has its bytes (whatever they hold)."""

    @abstractmethod
    def scratch(self) -> int:
        """Bytes beyond the slabs that only code inside a window of this pool can get."""

    @abstractmethod
    def begin(self) -> None:
        """Called before the first slab is given up: nothing may still be reading the weights."""

    @abstractmethod
    def evict(self, index: int) -> None:
        """Gives a slab's bytes up without copying them. Doing it twice is no error."""

    @abstractmethod
    def retake(self, indices: Sequence[int]) -> None:
        """Takes slabs back at the addresses where they were. Doing it twice is no error."""

    @abstractmethod
    def lend(self, lent: int) -> None:
        """From now on the calling thread's allocations go to the `lent` bytes of the slabs that were given up."""

    @abstractmethod
    def end_lending(self) -> Usage | None:
        """From now on they do not; what was used, or None if nothing was being lent."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside the block the calling thread's allocations do not go to lent bytes: somebody else's turn."""
        yield

    @abstractmethod
    def keep(self, tree: Any) -> Any:
        """Copies of the tensors in `tree` that do not lie in lent bytes; called while they are lent."""


class SimulatedArena(Arena):
    """Host memory that behaves like a card's: what is lent holds NaN, and what runs in the window is counted."""

    unbinds = False  # the views stay bound: a use before the restore yields NaN

    def __init__(self, sizes: Sequence[int]) -> None:
        region = np.empty(sum(sizes) + ALIGN, dtype=np.uint8)
        begin = -region.ctypes.data % ALIGN
        self.slabs = []
        for size in sizes:  # through numpy, so that each slab is a storage of its own, as it is on a card
            self.slabs.append(torch.from_numpy(region[begin : begin + size]))
            begin += size
        self._addresses = [slab.data_ptr() for slab in self.slabs]
        self._tracker: LiveTracker | None = None
        self._lent = 0
        self._thread = 0

    def is_home(self, index: int) -> bool:
        return True

    def scratch(self) -> int:
        return 0

    def begin(self) -> None:
        """Host code has run to its end."""

    def evict(self, index: int) -> None:
        self.slabs[index].fill_(POISON)

    def retake(self, indices: Sequence[int]) -> None:
        assert all(self.slabs[i].data_ptr() == self._addresses[i] for i in indices)

    def lend(self, lent: int) -> None:
        self._lent = lent
        self._thread = threading.get_ident()
        self._tracker = LiveTracker()  # known before it is entered: whatever strikes in between, it can be left
        self._tracker.__enter__()

    def end_lending(self) -> Usage | None:
        tracker = self._tracker
        if tracker is None:
            return None
        if threading.get_ident() == self._thread and tracker.entered:  # nobody can leave another thread's mode
            tracker.__exit__(None, None, None)
        self._tracker = None
        return Usage(tracker.peak, growth(list(tracker.events), region=self._lent))

    def keep(self, tree: Any) -> Any:
        copy: Callable[[Tensor], Tensor] = lambda tensor: tensor.clone()  # noqa: E731
        tracker = self._tracker
        if tracker is None:
            return tree_map_only(Tensor, copy, tree)
        tracker.__exit__(None, None, None)  # the copies lie outside of the lent bytes, so they are not counted
        try:
            return tree_map_only(Tensor, copy, tree)
        finally:
            tracker.__enter__()
