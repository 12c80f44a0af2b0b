"""Calls of one decode step, as `native_kernels.py` measures them: arguments, bytes to be moved, plain torch's way.

for case in cases("7B", torch.float16, device): case.make(), case.moved
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.quant import pack

MODELS = {"tiny": (256, 4, 2, 64, 768), "0.5B": (896, 14, 2, 64, 4864), "7B": (3584, 28, 4, 128, 18944)}
"""Hidden size, query heads, key heads, channels of a head, inner size."""

SLOTS, HELD = 4096, 4000
FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        op: of the op table.
        shape: for people.
        make: fresh arguments.
        moved: bytes that must be read and written, each once.
        plain: the same in plain torch, on the same arguments; None where it has no one call for it.
    """

    op: str
    shape: str
    make: Callable[[], tuple[Any, ...]]
    moved: int
    plain: Callable[..., Any] | None = None


def cases(name: str, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """Every op of a decode step of this model; the experts of another one of its width."""
    hidden, queries, heads, channels, inner = MODELS[name]

    def drawn(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, device=device).to(kind)

    size = dtype.itemsize
    for out, columns in ((hidden, hidden), (2 * inner, hidden), (hidden, inner)):
        for rows in (1, 4, 16):
            yield _w4(out, columns, rows, dtype, device)
        yield Case(
            "linear", f"1 x {columns} -> {out}", lambda o=out, c=columns: (drawn(1, c), drawn(o, c), None),
            out * columns * size, functional.linear,
        )  # fmt: skip
    yield _experts(hidden, dtype, device)
    yield Case(
        "rms_norm", str(hidden), lambda: (drawn(1, hidden), drawn(hidden), 1e-6, 0.0, True), 3 * hidden * size,
        lambda x, weight, eps, *_: functional.rms_norm(x, (hidden,), weight, eps),
    )  # fmt: skip
    fused = lambda: (drawn(1, hidden), drawn(1, hidden), drawn(hidden), 1e-6, 0.0, True)  # noqa: E731
    yield Case("fused_add_rms_norm", str(hidden), fused, 5 * hidden * size)
    yield Case("silu_and_mul", str(inner), lambda: (drawn(1, 2 * inner),), 3 * inner * size, _silu)
    turn = (queries + heads) * channels * 2 * size
    yield Case(
        "rotary", f"{queries}/{heads} x {channels}",
        lambda: (drawn(1, queries, 1, channels), drawn(1, heads, 1, channels), drawn(1, 1, channels),
                 drawn(1, 1, channels), []),
        turn,
    )  # fmt: skip
    for kind in (dtype, FLOAT8):
        yield from _cache(queries, heads, channels, dtype, kind, device)


def _w4(out: int, columns: int, rows: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Plain torch has no such product here: it is compared with the product of a weight that was never packed."""

    def make() -> tuple[Any, ...]:
        codes = torch.randint(0, 16, (out, columns), dtype=torch.uint8, device=device)
        weight = pack(codes, torch.rand(out, columns // 128, device=device).to(dtype) * 0.02, group_size=128)
        x = torch.randn(rows, columns, device=device).to(dtype)
        return x, weight.words, weight.scales, weight.zeros, None, None, columns, 128

    return Case("w4a16", f"{rows} x {columns} -> {out}", make, out * columns // 2 + out * columns // 128 * 3)


def _experts(width: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Two chosen of eight."""

    def make() -> tuple[Any, ...]:
        codes = torch.randint(0, 16, (8 * width, width), dtype=torch.uint8, device=device)
        weight = pack(codes, torch.rand(8 * width, width // 128, device=device).to(dtype) * 0.02, group_size=128)
        stacked = [tensor.view(8, width, -1) for tensor in (weight.words, weight.scales, weight.zeros)]
        chosen = torch.tensor([5, 2], device=device)
        return torch.randn(1, width, device=device).to(dtype), chosen, *stacked, None, width, 128

    moved = 2 * (width * width // 2 + width * width // 128 * 3)
    return Case("expert_linear", f"1 x {width} -> 2 of 8 x {width}", make, moved)


def _cache(
    queries: int, heads: int, channels: int, dtype: torch.dtype, kind: torch.dtype, device: torch.device
) -> Iterator[Case]:
    shape = f"{queries}/{heads} x {channels}, {str(kind)[6:]}"
    scale = channels**-0.5

    def drawn(count: int, tokens: int, store: torch.dtype) -> Tensor:
        return torch.randn(1, count, tokens, channels, device=device).to(store)

    def number(value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int32, device=device)

    def stored() -> tuple[Any, ...]:
        rings = (drawn(heads, SLOTS, kind), drawn(heads, SLOTS, kind))
        return drawn(heads, 1, dtype), drawn(heads, 1, dtype), *rings, number(HELD), None, None, None

    def attended() -> tuple[Any, ...]:
        rings = (drawn(heads, SLOTS, kind), drawn(heads, SLOTS, kind))
        return drawn(queries, 1, dtype), *rings, number(HELD), scale, 0.0, None, None, None, None

    yield Case("kv_store", shape, stored, 2 * heads * channels * (dtype.itemsize + kind.itemsize))
    moved = 2 * heads * HELD * channels * kind.itemsize
    yield Case("decode_attention", f"{shape}, {HELD} held", attended, moved, _sdpa if kind == dtype else None)


def _silu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def _sdpa(q: Tensor, keys: Tensor, values: Tensor, length: Tensor, scale: float, *_: Any) -> Tensor:
    held = keys[:, :, :HELD], values[:, :, :HELD]
    return functional.scaled_dot_product_attention(q, *held, scale=scale, enable_gqa=True)
