"""What a card is, and how much of it is truly free: `open_card("auto" | "cpu" | "cuda:1" | "sim:16GiB@24GB/s")`.

Names are looked up when they are used, so that the arithmetic in `budget` can be had without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.late import late

if TYPE_CHECKING:
    from mmswap.card.accelerator import AcceleratorCard
    from mmswap.card.backend import Backend, TorchBackend
    from mmswap.card.base import Card
    from mmswap.card.budget import Reading
    from mmswap.card.host import HostCard
    from mmswap.card.opening import open_card
    from mmswap.card.simulated import SimulatedCard

__all__ = ["AcceleratorCard", "Backend", "Card", "HostCard", "Reading", "SimulatedCard", "TorchBackend", "open_card"]

__getattr__ = late(
    __name__,
    {
        "AcceleratorCard": "accelerator",
        "Backend": "backend",
        "Card": "base",
        "HostCard": "host",
        "Reading": "budget",
        "SimulatedCard": "simulated",
        "TorchBackend": "backend",
        "open_card": "opening",
    },
)
