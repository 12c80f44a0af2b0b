"""What is examined: the machine as the probes see it, and the card that was chosen, if any. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmswap.hip_ext.surroundings import Surroundings

if TYPE_CHECKING:
    from mmswap.card.accelerator import AcceleratorCard
    from mmswap.card.backend import Backend
    from mmswap.card.base import Card


@dataclass(slots=True)
class Patient:
    """Filled while the page is written.

    Attributes:
        spec: the card as it was asked for.
        backend: what is asked about accelerators; None: torch.cuda, so another process would see the same cards.
        card: None when it could not be opened.
        accelerator: the same, if it is one behind torch.cuda.
    """

    here: Surroundings
    spec: str
    backend: Backend | None = None
    card: Card | None = None
    accelerator: AcceleratorCard | None = None

    def take(self, card: Card) -> None:
        """This is the card."""
        from mmswap.card.accelerator import AcceleratorCard

        self.card = card
        self.accelerator = card if isinstance(card, AcceleratorCard) else None

    @property
    def arch(self) -> str:
        """What the chosen accelerator calls its architecture; empty where it says nothing. Never raises."""
        if self.accelerator is None:
            return ""
        try:
            return self.accelerator.backend.properties(self.accelerator.index).arch
        except Exception:
            return ""
