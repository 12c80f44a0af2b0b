"""Keys and values with an attention truth in float64, for every test of a quantised cache. Knows no cache.

`CASES[name]()` gives a `Case`; the bounds are on the cosine of the attention's result against the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BOUND = {"fp32": 0.9999, "fp16": 0.9999, "bf16": 0.9999, "int8": 0.99, "fp8_e4m3": 0.99, "fp8_e5m2": 0.99}


@dataclass(frozen=True)
class Case:
    """q [B,Hq,Tq,D], k, v [B,Hk,T,D], mask [B,Tq,T] (True: may look); `out` is the truth."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor

    @property
    def out(self) -> Tensor:
        return attend(self.q, self.k, self.v, self.mask)

    def cosine(self, k: Tensor, v: Tensor) -> float:
        got = attend(self.q, k, v, self.mask)
        assert torch.isfinite(got).all()
        return float(torch.nn.functional.cosine_similarity(got.flatten(), self.out.flatten(), dim=0))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(repeats, 1) for part in (k, v))
    scores = q.double() @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v


def turned(x: Tensor, first: int, base: float = 1e6) -> Tensor:
    """Rotary positions from `first` on."""
    half = x.shape[-1] // 2
    places = torch.arange(first, first + x.shape[-2], dtype=torch.float64)[:, None]
    angles = places / base ** (torch.arange(half, dtype=torch.float64) / half)
    a, b = x.double()[..., :half], x.double()[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).float()


def make(
    seed: int,
    *,
    width: int = 64,
    tokens: int = 48,
    asked: int = 4,
    batch: int = 1,
    outlier: float = 0.0,
    positions: bool = True,
    window: int | None = None,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, 4, asked, width, generator=generator) * 1.5
    k, v = (torch.randn(batch, 2, tokens, width, generator=generator) for _ in range(2))
    if outlier:
        channels = torch.randperm(width, generator=generator)[:3]
        k[..., channels] += outlier * torch.randn(3, generator=generator).sign()
        q[..., channels] *= 0.02  # trained models hold the product in check
    if positions:
        q, k = turned(q, tokens - asked), turned(k, 0)
    rows, columns = torch.arange(tokens - asked, tokens)[:, None], torch.arange(tokens)[None]
    mask = columns <= rows
    if window is not None:
        mask &= columns > rows - window
    return Case(q, k, v, mask.expand(batch, -1, -1).clone())


def changed(case: Case, change: Callable[[Tensor, Tensor, Tensor], None]) -> Case:
    change(case.k, case.v, case.mask)
    return case


def _zero_rows(k: Tensor, v: Tensor, mask: Tensor) -> None:
    k[:, :, 7], v[:, :, 9] = 0, 0


def _constant_row(k: Tensor, v: Tensor, mask: Tensor) -> None:
    k[:, :, 3] = 2.5


def _large_channel(k: Tensor, v: Tensor, mask: Tensor) -> None:
    v[..., 5] *= 300


def _padded(k: Tensor, v: Tensor, mask: Tensor) -> None:
    mask[1, :, :12] = False


def _tiny(k: Tensor, v: Tensor, mask: Tensor) -> None:
    k *= 1e-4
    v *= 1e-4


CASES: dict[str, Callable[[], Case]] = {
    "plain": lambda: make(2),
    "outlier_rope": lambda: make(1, outlier=250.0),
    "outlier_norope": lambda: make(3, outlier=250.0, positions=False),
    "outlier_values": lambda: changed(make(4), _large_channel),
    "zero_rows": lambda: changed(make(5), _zero_rows),
    "constant_rows": lambda: changed(make(6), _constant_row),
    "batch_ragged": lambda: changed(make(7, batch=2, tokens=17), _padded),
    "one_token": lambda: make(8, tokens=1, asked=1),
    "tiny_values": lambda: changed(make(9), _tiny),
    **{f"head_dim_{width}": (lambda width=width: make(10, width=width)) for width in (40, 72, 80, 96, 100, 128, 256)},
}
