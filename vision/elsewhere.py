"""The tower on another device for a while: its tensors go there, and what they were on the card waits for them.

with tower_at(tower, torch.device("cpu")): features = tower.run(call)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mmswap.swap import interrupts
from mmswap.vision.tower import Tower


@contextmanager
@interrupts.guarded  # what runs between the two halves is not
def tower_at(tower: Tower, device: torch.device) -> Iterator[None]:
    """What lies on the card stays there meanwhile: coming back takes no memory, and nothing has to be copied."""
    homes = [(tensor, tensor.data) for _, module in tower.modules for tensor in _tensors(module)]
    try:
        interrupts.hold(homes)
        for tensor, home in homes:
            tensor.data = home.to(device)
        interrupts.deliver()
        yield
    finally:
        for tensor, home in homes:
            tensor.data = home
        interrupts.let_go(homes)
        interrupts.deliver()


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
