"""Plain torch, on every device: what each op means. Every other backend must agree with it within its tolerance.

Everything is computed in float32 and rounded once, at the end, unless a line says otherwise. No tensor's content
decides what runs, so a card is never waited for. Docstrings give the formula; `schema.py` has the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops import kv_reference, shuffle
from mmswap.llm.ops.backends import Implementation
from mmswap.llm.quant.bits import split_words, split_words_down
from mmswap.llm.quant.layout import MIDDLE, Packed4, laid

NAME = "reference"


def available(device: torch.device) -> str | None:
    """Always."""
    return None


def w4a16(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """x W^T + b, W as `Packed4.dequantise` says, unpacked whole for this call and rounded to the dtype of x.

    float16 inputs are computed in float32 where the scales are not float16: such scales may be below its range.
    """
    packed = Packed4(words, scales, zeros, in_features, group_size, order)
    dtype = _dtype(x, scales)
    bias = None if bias is None else bias.to(dtype)
    return functional.linear(x.to(dtype), packed.dequantise(dtype), bias).to(x.dtype)


def int4pack(
    x: Tensor,
    packed: Tensor,
    scale_zero: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """The same for the CPU's layout: W[o, c] = (code - 8) scale[g, o] + zero[g, o], and x as `arranged` lays it.

    float16 inputs are computed in float32: scales may be below its range.
    """
    from mmswap.llm.ops.cpu_layout import arranged, dequantise

    dtype = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32
    weight = dequantise(packed, scale_zero, group_size, dtype)
    inputs = arranged(x, order, weight.shape[1]).to(dtype)
    return functional.linear(inputs, weight, None if bias is None else bias.to(dtype)).to(x.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, by torch."""
    return functional.linear(x, weight, bias)


def expert_linear(
    x: Tensor,
    experts: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    in_features: int,
    group_size: int,
) -> Tensor:
    """Row a: x[a] W[experts[a]]^T + b[experts[a]]; one row of x serves all."""
    active, out = experts.shape[0], words.shape[1]
    dtype = _dtype(x, scales)
    words, scales, zeros = (tensor.index_select(0, experts).flatten(0, 1) for tensor in (words, scales, zeros))
    weight = Packed4(words, scales, zeros, in_features, group_size).dequantise(dtype).view(active, out, in_features)
    result = torch.matmul(weight, x.to(dtype).unsqueeze(-1)).squeeze(-1)
    return (result if bias is None else result + bias.index_select(0, experts).to(dtype)).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> Tensor:
    """x / sqrt(mean(x^2) + eps) (weight + offset). late: rounded to the dtype of x before the weight is applied."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    return ((normed.to(x.dtype).float() if late else normed) * (weight.float() + offset)).to(x.dtype)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) with s = x + residual, rounded to the dtype before it is normed."""
    total = x + residual
    return rms_norm(total, weight, eps, offset, late), total


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """g / (1 + exp(-g)) u, of the halves g and u of the last dimension."""
    gate, up = gate_up.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """gelu(g) u, by the error function (`none`) or by its approximation (`tanh`)."""
    gate, up = gate_up.float().chunk(2, -1)
    return (functional.gelu(gate, approximate=approximate) * up).to(gate_up.dtype)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The first R channels turn: [a, b] -> [a cos - b sin, b cos + a sin] for their halves; the others stay.

    With sections the angles have an axis in front (time, height, width): channel runs of these lengths take theirs from
    the axes in turn, and so does the second half (Qwen2-VL).
    """
    cos, sin = (of_axes(angles, sections).float().unsqueeze(1) for angles in (cos, sin))

    def turned(x: Tensor) -> Tensor:
        width = cos.shape[-1]
        turning = x[..., :width].float()
        first, second = turning.chunk(2, -1)
        result = (turning * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)
        return result if width == x.shape[-1] else torch.cat((result, x[..., width:]), -1)

    return turned(q), turned(k)


def of_axes(angles: Tensor, sections: Sequence[int]) -> Tensor:
    """[axes, B, T, R] -> [B, T, R]: each run of channels from its axis. Without sections as they are."""
    if not sections:
        return angles
    runs = torch.split(angles, [*sections, *sections], -1)
    return torch.cat([run[i % len(sections) % angles.shape[0]] for i, run in enumerate(runs)], -1)


def gptq_shuffle(
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    source: Tensor | None,
    table: Tensor | None,
    columns: int,
    group_size: int,
    zero_mode: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(words, scales, zeros) of a `Packed4`: columns in the order of their groups, nibbles in the kernels'."""
    codes, out = split_words(qweight.t())[:, :columns], scales.shape[1]
    if zero_mode == shuffle.SYMMETRIC or qzeros is None:
        zeros = torch.full((out, scales.shape[0]), MIDDLE, dtype=torch.uint8, device=scales.device)
    else:
        zeros = split_words_down(qzeros)[:out]
        # In four bits: 0 less one was stored as 15, and no quantiser gives 16.
        zeros = (zeros + 1) & 15 if zero_mode == shuffle.LESS_ONE else zeros
    return laid(codes, scales.t(), zeros, source, table, shuffle.padded(columns, source), group_size)


def _dtype(x: Tensor, scales: Tensor) -> torch.dtype:
    """In which a weight is unpacked."""
    narrow = x.dtype == torch.float16 and scales.dtype != torch.float16
    return torch.float32 if narrow else x.dtype


def _everything(*arguments: Any) -> None:
    """Refuses nothing."""
    return


_RUNS: dict[str, Callable[..., Any]] = {
    "w4a16": w4a16,
    "int4pack": int4pack,
    "linear": linear,
    "expert_linear": expert_linear,
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
    "silu_and_mul": silu_and_mul,
    "gelu_and_mul": gelu_and_mul,
    "rotary": rotary,
    "kv_store": kv_reference.kv_store,
    "decode_attention": kv_reference.decode_attention,
    shuffle.NAME: gptq_shuffle,
}
IMPLEMENTATIONS = {name: Implementation(run, _everything) for name, run in _RUNS.items()}
