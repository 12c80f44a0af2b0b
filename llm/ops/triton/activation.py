"""silu_and_mul and gelu_and_mul by Triton: act(first half) times second half, float32 inside.

    y = run_silu(gate_up);  y = run_gelu(gate_up, "tanh")      # [..., 2I] -> [..., I]

Nothing here was run on a card.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.launch import Launcher, rows_of

_BLOCK = 1024


@triton.jit
def tanh(x):
    """tanh by exp2, which every card has."""
    return 1.0 - 2.0 / (tl.exp2(x * 2.8853900817779268) + 1.0)


@triton.jit
def act_and_mul(gate_up_ptr, y_ptr, stride, features, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK features of one row. ACT: silu, none (gelu by the error function), tanh (gelu by its approximation)."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = i < features
    gate = tl.load(gate_up_ptr + row * stride + i, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + features + i, mask=there, other=0.0).to(tl.float32)
    if ACT == "silu":
        gate = gate / (1.0 + tl.exp2(gate * -1.4426950408889634))
    elif ACT == "tanh":
        gate = 0.5 * gate * (1.0 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)))
    else:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(y_ptr + row * features + i, (gate * up).to(y_ptr.dtype.element_ty), mask=there)


_act_and_mul = Launcher(act_and_mul)


def refuses_silu(gate_up: Tensor) -> str | None:
    """It takes everything."""
    return None


def refuses_gelu(gate_up: Tensor, approximate: str) -> str | None:
    """It takes everything."""
    return None


def run_silu(gate_up: Tensor) -> Tensor:
    """[..., 2I] -> [..., I]."""
    return _start(gate_up, "silu")


def run_gelu(gate_up: Tensor, approximate: str) -> Tensor:
    """[..., 2I] -> [..., I]; `approximate`: none or tanh."""
    return _start(gate_up, approximate)


def _start(gate_up: Tensor, act: str) -> Tensor:
    features = gate_up.shape[-1] // 2
    y = gate_up.new_empty((*gate_up.shape[:-1], features))
    if y.numel():
        flat = rows_of(gate_up)
        grid = (flat.shape[0], -(-features // _BLOCK), 1)
        _act_and_mul(grid, (flat, y, flat.stride(0), features), (act, _BLOCK), 4)
    return y
