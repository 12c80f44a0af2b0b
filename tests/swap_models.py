"""Small models with every kind of tensor that has ever been lost, and a window's usual setting."""

from __future__ import annotations

import torch
from fake_cuda import FakeCuda
from torch import Tensor, nn

from mmswap.card import AcceleratorCard
from mmswap.swap import SwapPool

WIDTH = 32


class OddBlock(nn.Module):
    """A residual block that holds tied, transposed, scalar, empty, integer, boolean and non-persistent tensors."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.turned = nn.Parameter(torch.randn(width, width).t(), requires_grad=False)  # stride (1, width)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.empty = nn.Parameter(torch.empty(0, width))
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.arange(7))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("angles", torch.randn(3, 5, dtype=torch.float64), persistent=False)
        self.register_buffer("short", torch.randn(9).to(torch.bfloat16))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(x))) * self.scale + self.second(self.first(x)) @ self.turned
        factor = self.angles.sum() * self.steps.sum() + self.short.float().sum() + self.mask.sum()
        return torch.tanh(y + factor.to(y.dtype) * 1e-3)


class ToyDecoder(nn.Module):
    """Embedding, blocks, and a head tied to the embedding."""

    def __init__(self, layers: int = 6, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, width)
        self.layers = nn.ModuleList(OddBlock(width) for _ in range(layers))
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


IDS = torch.arange(10)[None]


def named_layers(model: ToyDecoder) -> list[tuple[str, nn.Module]]:
    return [(f"layers.{index}", layer) for index, layer in enumerate(model.layers)]


def tight_pool(model: ToyDecoder, *, room: int = 0, link: str = "") -> SwapPool:
    """A pool on a simulated card with `room` bytes free beyond the units themselves."""
    probe = SwapPool(named_layers(model), "cpu", root=model)
    size = sum(unit.nbytes for unit in probe.units) + room
    return SwapPool(named_layers(model), f"sim:{size}{link}", root=model)


def pool_on(fake: FakeCuda, model: ToyDecoder) -> SwapPool:
    """A pool of the model's layers on a card that is not there."""
    return SwapPool(named_layers(model), AcceleratorCard(fake, 0), root=model)
