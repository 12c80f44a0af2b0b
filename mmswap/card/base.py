"""What every card can say about itself. Knows neither models nor plans; `open_card` in the package makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from mmswap.card.budget import Reading


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
