"""A card on host memory: a capacity, a link speed and a ledger of who holds what. A test and planning instrument.

    card = SimulatedCard("sim:16GiB@24GB/s");  card.claim("language model", nbytes);  card.free().bytes

Nothing it says is a measurement of real hardware.
"""

from __future__ import annotations

import torch

from mmswap.card.base import Card
from mmswap.card.budget import Reading, simulated_free
from mmswap.errors import OptionError
from mmswap.units import format_bytes, parse_bytes, parse_rate

SMALLEST = 256  # bytes; a bare number below is a size whose unit was forgotten


class SimulatedCard(Card):
    """`--card sim:SIZE[@LINK]`.

    Attributes:
        claims: bytes booked under each label, in the order in which they were first booked.
    """

    def __init__(self, spec: str) -> None:
        kind, _, figures = spec.partition(":")
        size, at, link = figures.partition("@")
        if kind != "sim" or not size or (at and not link):
            raise OptionError(f"'{spec}' is not a simulated card: write for example sim:16GiB or sim:16GiB@24GB/s.")
        try:
            self.capacity = parse_bytes(size)
            self._link = parse_rate(link) if at else None
        except ValueError as error:
            raise OptionError(f"--card {spec}: {error}") from None
        if self.capacity < SMALLEST:
            raise OptionError(f"--card {spec}: a card of {self.capacity} bytes? Write the unit, for example sim:16GiB.")
        self.spec = spec
        self.name = f"simulated card of {format_bytes(self.capacity)}"
        self.device = torch.device("cpu")
        self.can_swap = True
        self.choice = "a simulated card was asked for"
        self.claims: dict[str, int] = {}

    def total(self) -> int:
        return self.capacity

    def free(self) -> Reading:
        return simulated_free(self.capacity, dict(self.claims))

    def overfull(self) -> int:
        return max(0, sum(self.claims.values()) - self.capacity)

    def link_rate(self) -> int | None:
        return self._link

    def claim(self, label: str, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"a claim must not be negative: {label} {nbytes}")
        self.claims[label] = nbytes

    def release(self, label: str) -> None:
        self.claims.pop(label, None)
