"""Muon: momentum whose step is orthogonalised, for the weight matrices of the blocks.

Method: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

from collections.abc import Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    def __init__(self, weights: Iterable[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01):
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                average = state.setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                by_shape.setdefault(weight.shape, []).append((weight, weight.grad.lerp(average, group["momentum"])))
            for shape, pairs in by_shape.items():  # matrices of one shape go through one batched product
                steps = _orthogonal(torch.stack([step for _, step in pairs]))
                scale = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for (weight, _), step in zip(pairs, steps, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).add_(step, alpha=-scale)


def _orthogonal(matrices: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest orthogonal matrices."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()
