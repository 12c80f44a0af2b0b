"""Each op in float64, written from `docs/ops.md` and not from the reference: what every backend is measured by."""

from __future__ import annotations

from typing import Any

import torch
from tolerance import Truth
from torch import Tensor

from mmswap.llm.quant import Packed4


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Truth:
    """`weight` is float64 [..., out, in]."""
    x = x.double()
    value, size = (weight @ x.unsqueeze(-1)).squeeze(-1), (weight.abs() @ x.abs().unsqueeze(-1)).squeeze(-1)
    if bias is not None:
        value, size = value + bias.double(), size + bias.double().abs()
    return Truth(value, size, size)


def w4a16(
    x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, order: Any, bias: Any, columns: int, group: int
) -> Truth:
    return _product(x, Packed4(words, scales, zeros, columns, group, order).dequantise(torch.float64), bias)


def int4pack_weight(packed: Tensor, scale_zero: Tensor, group: int) -> Tensor:
    """float64 [out, k]: what torch's own kernel makes of the identity in float32, which is exact to 2^-24."""
    unit = torch.eye(packed.shape[1] * 2)
    numbers = scale_zero.float().contiguous()
    return torch._weight_int4pack_mm_for_cpu(unit, packed.contiguous(), group, numbers).t().double()


def int4pack(x: Tensor, packed: Tensor, scale_zero: Tensor, order: Any, bias: Any, columns: int, group: int) -> Truth:
    weight, k = int4pack_weight(packed, scale_zero, group), packed.shape[1] * 2
    inputs = torch.cat((x.double(), x.new_zeros((*x.shape[:-1], k), dtype=torch.float64)), -1)
    return _product(inputs[..., torch.arange(k) if order is None else order.long()], weight, bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Truth:
    truth = _product(x, weight.double(), bias)
    return Truth(truth.value, truth.value.abs() + (0 if bias is None else bias.double().abs()), truth.summed)


def expert_linear(
    x: Tensor, experts: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, bias: Any, columns: int, group: int
) -> Truth:
    weights = [
        Packed4(words[e], scales[e], zeros[e], columns, group).dequantise(torch.float64) for e in experts.tolist()
    ]
    stacked = torch.stack(weights) if weights else torch.empty(0, words.shape[1], columns, dtype=torch.float64)
    return _product(x, stacked, None if bias is None else bias[experts.long()])


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> Truth:
    wide = x.double()
    value = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    size = value.abs()
    if weight is not None:
        value = value * (weight.double() + offset)
        size = size * (weight.double().abs() + abs(offset))
    return Truth(value, size, size)


def fused_add_rms_norm(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Truth, Truth]:
    total = (x.double() + residual.double()).to(x.dtype)
    exact = total.double()
    return rms_norm(total, *rest), Truth(exact, 0 * exact, 0 * exact)


def silu_and_mul(gate_up: Tensor) -> Truth:
    gate, up = gate_up.tensor_split(2, -1)
    value = gate.double() / (1 + torch.exp(-gate.double())) * up.double()
    return Truth(value, value.abs() + _tiny(up), value.abs())


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Truth:
    gate, up = gate_up.tensor_split(2, -1)
    tiny, gate, up = _tiny(up), gate.double(), up.double()
    if approximate == "tanh":
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        value = gate * up * 0.5 * (1 + torch.tanh(inner))
    else:
        value = gate * up * 0.5 * torch.erfc(-gate / 2**0.5)
    return Truth(value, value.abs() + tiny, (gate * up).abs())


def _tiny(up: Tensor) -> Tensor:
    """What an activation may be off by below the normal range of its dtype, in units of its rounding, times up."""
    return torch.finfo(up.dtype).tiny * up.double().abs()


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: list[int]) -> tuple[Truth, Truth]:
    cos, sin = (_angles(angles.double(), sections) for angles in (cos, sin))
    return _turned(q, cos, sin), _turned(k, cos, sin)


def _angles(angles: Tensor, sections: list[int]) -> Tensor:
    if not sections:
        return angles
    axis = [i % len(sections) % len(angles) for i, length in enumerate(sections) for _ in range(length)] * 2
    return torch.stack([angles[axis[channel], ..., channel] for channel in range(len(axis))], -1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Truth:
    value, size = x.double().clone(), x.double().abs()
    width = cos.shape[-1]
    for channel in range(width):
        partner, sign = (channel + width // 2, -1) if channel < width // 2 else (channel - width // 2, 1)
        one = x[..., channel].double() * cos[:, None, :, channel]
        other = sign * x[..., partner].double() * sin[:, None, :, channel]
        value[..., channel], size[..., channel] = one + other, one.abs() + other.abs()
    return Truth(value, size, size)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    scale: float,
    soft_cap: float,
    k_scale: Any,
    v_scale: Any,
    sinks: Any,
    mask: Any,
) -> Truth:
    batch, heads, slots, _ = keys.shape
    shared = q.shape[1] // heads
    value = torch.zeros(*q.shape[:3], values.shape[3], dtype=torch.float64)
    rounded, summed = value.clone(), value.clone()
    for b in range(batch):
        seen = torch.arange(slots) < length[b if len(length) > 1 else 0]
        seen = seen if mask is None else seen & mask[b]
        for h in range(q.shape[1] if bool(seen.any()) else 0):
            key, worth = keys[b, h // shared, seen].double(), values[b, h // shared, seen].double()
            if k_scale is not None:
                key = key * k_scale[h // shared].double()
            if v_scale is not None:
                by = v_scale[b, h // shared, seen][:, None] if v_scale.dim() == 3 else v_scale[h // shared]
                worth = worth * by.double()
            scores, size = key @ q[b, h, 0].double() * scale, key.abs() @ q[b, h, 0].double().abs() * abs(scale)
            scores = soft_cap * torch.tanh(scores / soft_cap) if soft_cap else scores
            logits = scores if sinks is None else torch.cat((scores, sinks[h : h + 1].double()))
            shares = torch.softmax(logits, 0)[: len(scores)]
            value[b, h, 0], rounded[b, h, 0] = shares @ worth, shares @ worth.abs()
            summed[b, h, 0] = rounded[b, h, 0] * (1 + size.max())
    return Truth(value, rounded, summed)
