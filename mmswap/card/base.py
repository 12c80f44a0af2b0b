"""What every card can say about itself. Knows neither models nor plans; `open_card` in the package makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mmswap.card.budget import Reading, Source

if TYPE_CHECKING:
    from mmswap.card.spill import Spill


class Card(ABC):
    """The device that runs the model.

    Attributes:
        spec: how a person names it (`cpu`, `cuda:0`, `sim:16GiB@24GB/s`).
        name: what it is, for people.
        device: where its tensors live.
        can_swap: whether evicting units frees memory that an encoder can use.
        choice: why this card was taken, one sentence.
    """

    spec: str
    name: str
    device: torch.device
    can_swap: bool = False
    choice: str = ""

    @abstractmethod
    def total(self) -> int:
        """Bytes of the whole card."""

    @abstractmethod
    def free(self) -> Reading:
        """Bytes that this process can still take without spilling, read now, with the reason."""

    def sources(self) -> tuple[Source, ...]:
        """Everything that is asked about free bytes, with its value or why it has none; read now."""
        return self.free().sources

    @contextmanager
    def placed(self, label: str, nbytes: int) -> Iterator[bool]:
        """Really places `nbytes` for the time of the block, so that `free` can be read with them there.

        Yields whether they could be placed. If not, `free` says inside the block by how much they are too many.
        """
        yield True

    def spilled(self) -> Spill:
        """Bytes of this process that the driver has moved to host memory, polled now."""
        from mmswap.card.spill import Spill

        return Spill(0, "nothing of this process can be moved off this card", "")

    def overfull(self) -> int:
        """Bytes by which the claims exceed the card; a real card raises on allocation instead."""
        return 0

    def link_rate(self) -> int | None:
        """Bytes a second from the host to the card, where it is known."""
        return None

    def claim(self, label: str, nbytes: int) -> None:  # noqa: B027
        """Book `nbytes` under `label` (replacing what stood there). Only a simulated card needs to be told."""

    def release(self, label: str) -> None:  # noqa: B027
        """Strike a claim out; an unknown label is no error."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"
