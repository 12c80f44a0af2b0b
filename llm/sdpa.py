"""Which of torch's attention kernels a prefill may use: those that give the right numbers here, fastest first.

    kernels = choose(device, dtype, heads=28, kv_heads=4, width=128)
    with kernels.applied(): model(...)

A kernel that is wrong, or raises, on a small prompt of these shapes is left out for good. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS = 96
RUNS = 5
_FUSED = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_MATH = "math"
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Kernels:
    """What may run, fastest first, and why the others may not.

    Attributes:
        names: of the fused kernels. After them comes `math`, torch's own arithmetic, which holds all scores at once.
        refused: (name, reason) of the others.
    """

    names: tuple[str, ...]
    refused: tuple[tuple[str, str], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Attention inside the block runs on one of these."""
        with sdpa_kernel([*(_FUSED[name] for name in self.names), SDPBackend.MATH], set_priority=True):
            yield

    def describe(self) -> str:
        """One sentence for `--explain`."""
        left = "; ".join(f"{name} is left out, because {why}" for name, why in self.refused)
        return (
            f"Attention of the prompt: {', '.join([*self.names, _MATH])}, fastest first{'; ' + left if left else ''}."
        )


def choose(device: torch.device, dtype: torch.dtype, *, heads: int, kv_heads: int, width: int) -> Kernels:
    """Try every fused kernel on a causal prompt and on a chunk behind a cache, against arithmetic in float32.

    Args:
        heads, kv_heads, width: of the query, of keys and values, channels of a head.
    """
    cases = _cases(device, dtype, heads, kv_heads, width)
    seconds: dict[str, float] = {}
    refused: list[tuple[str, str]] = []
    for name in _FUSED:
        why = next((why for case in cases if (why := _wrong(name, case)) is not None), None)
        if why is None:
            seconds[name] = _seconds(name, cases[0])
        else:
            refused.append((name, why))
    return Kernels(tuple(sorted(seconds, key=lambda name: seconds[name])), tuple(refused))


@dataclass(frozen=True, slots=True)
class _Case:
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    causal: bool

    def run(self) -> Tensor:
        attended: Tensor = functional.scaled_dot_product_attention(
            self.q,
            self.k,
            self.v,
            attn_mask=self.mask,
            is_causal=self.causal,
            enable_gqa=self.q.shape[1] != self.k.shape[1],
        )
        return attended

    def wanted(self) -> Tensor:
        """The same by hand in float32."""
        group = self.q.shape[1] // self.k.shape[1]
        k, v = (tensor.float().repeat_interleave(group, 1) for tensor in (self.k, self.v))
        scores = self.q.float() @ k.transpose(-1, -2) * self.q.shape[-1] ** -0.5
        mask = (
            torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril() if self.causal else self.mask
        )
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        attended: Tensor = scores.softmax(-1) @ v
        return attended


def _cases(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> list[_Case]:
    random = torch.Generator().manual_seed(0)

    def draw(count: int, tokens: int) -> Tensor:
        return torch.randn(1, count, tokens, width, generator=random).to(device, dtype)

    q, k, v = draw(heads, TOKENS), draw(kv_heads, TOKENS), draw(kv_heads, TOKENS)
    chunk = q[:, :, -TOKENS // 3 :]
    rows = torch.arange(TOKENS - chunk.shape[2], TOKENS, device=device)
    mask = (torch.arange(TOKENS, device=device)[None] <= rows[:, None])[None, None]
    return [_Case(q, k, v, None, True), _Case(chunk, k, v, mask, False)]


def _wrong(name: str, case: _Case) -> str | None:
    """Why a kernel may not be used; with a mask it may hand on to arithmetic, as it will in a prefill."""
    allowed = [_FUSED[name]] if case.mask is None else [_FUSED[name], SDPBackend.MATH]
    try:
        with sdpa_kernel(allowed):
            given = case.run()
    except RuntimeError as error:
        said = str(error).splitlines()[0].rstrip(".")
        return "it does not take these shapes here" if "No viable" in said or "No available" in said else said
    worst = float((given.float() - case.wanted()).abs().max())
    return None if worst <= _TOLERANCE[case.q.dtype] else f"its numbers are off by {worst:.1e}"


def _seconds(name: str, case: _Case) -> float:
    """The median of a few runs."""
    seconds = []
    with sdpa_kernel([_FUSED[name]]):
        for _ in range(RUNS):
            begun = time.perf_counter()
            case.run()
            if case.q.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
    return median(seconds)
