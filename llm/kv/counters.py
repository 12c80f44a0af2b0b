"""Two numbers on the card that all layers of a cache share, so that a captured step finds them where they were."""

from __future__ import annotations

import torch
from torch import Tensor


class Counters:
    """`start`: the number of the next token; `length`: that plus one. int32 [1]; None before the device is known."""

    def __init__(self) -> None:
        self.start: Tensor | None = None
        self.length: Tensor | None = None

    def settle(self, device: torch.device) -> None:
        """Take their places, once."""
        if self.start is None:
            self.start = torch.zeros(1, dtype=torch.int32, device=device)
            self.length = torch.ones(1, dtype=torch.int32, device=device)

    def follow(self, tokens: int) -> None:
        """Write the host's count."""
        if self.start is not None and self.length is not None:
            self.start.fill_(tokens)
            self.length.fill_(tokens + 1)

    def add(self, tokens: int) -> None:
        if self.start is not None and self.length is not None:
            self.start.add_(tokens)
            self.length.add_(tokens)
