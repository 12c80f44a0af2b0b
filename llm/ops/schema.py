"""Every op of the table: its schema, what its arguments must be, and what it returns. Knows no backend.

    OPS["rms_norm"].fake(x, weight, 1e-6, 0.0, True)      # checks, and returns an empty tensor like the result

x, q, k, v are float16, bfloat16 or float32; results have their dtype. Leading dimensions `...` may be any, 0 included.
A check raises ValueError: a wrong shape or dtype is a fault of the caller, on every backend alike. `docs/ops.md` says
what each op computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "mmswap"
ACTIVATIONS = (torch.float16, torch.bfloat16, torch.float32)
CODES8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
KV_KINDS = (*ACTIVATIONS, *CODES8)
INT4PACK_GROUPS = (256, 128, 64, 32)
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Op:
    """`schema`: in torch's words, without the name. `check` raises ValueError. `outputs`: empty tensors."""

    schema: str
    check: Callable[..., None]
    outputs: Callable[..., Any]

    def fake(self, *arguments: Any) -> Any:
        """For fake and meta tensors, and for real ones whose result is to be written into."""
        self.check(*arguments)
        return self.outputs(*arguments)


def _require(holds: Any, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)


def _activation(name: str, x: Tensor, dims: int | None = None) -> None:
    _floating(name, x)
    fits = x.dim() >= 1 if dims is None else x.dim() == dims
    _require(fits, f"{name} has {x.dim()} dimensions, not {dims or 'one or more'}.")


def _shape(name: str, tensor: Tensor | None, *allowed: Sequence[int]) -> None:
    if tensor is not None and not any(tuple(tensor.shape) == tuple(shape) for shape in allowed):
        raise ValueError(f"{name} has shape {list(tensor.shape)}, not {' or '.join(str(list(s)) for s in allowed)}.")


def _of_dtype(name: str, tensor: Tensor | None, *dtypes: torch.dtype) -> None:
    if tensor is not None and tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}, not {' or '.join(map(str, dtypes))}.")


def _floating(name: str, tensor: Tensor | None) -> None:
    _of_dtype(name, tensor, *ACTIVATIONS)


def _together(first: Tensor, *others: Tensor | None) -> None:
    for other in others:
        _require(other is None or other.device == first.device, "the tensors lie on different devices.")


def _input(x: Tensor, in_features: int) -> None:
    _activation("x", x)
    _require(x.shape[-1] == in_features, f"x has {x.shape[-1]} features and the weight takes {in_features}.")


def _widened(x: Tensor, features: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], features))


def _int4(words: Tensor, scales: Tensor, zeros: Tensor, slots: int, group_size: int) -> None:
    _of_dtype("words", words, torch.int32)
    _of_dtype("zeros", zeros, torch.uint8)
    _floating("scales", scales)
    padded = -(-slots // BLOCK) * BLOCK
    _require(group_size >= 1, f"a group of {group_size} columns is none.")
    _require(words.shape[-1] * 8 == padded, f"rows of {words.shape[-1]} words do not hold {slots} codes.")
    _shape("scales", scales, (*words.shape[:-1], -(-padded // group_size)))
    _shape("zeros", zeros, scales.shape)


def _w4a16(x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, order: Tensor | None, bias: Tensor | None,
           in_features: int, group_size: int) -> None:  # fmt: skip
    _input(x, in_features)
    _require(words.dim() == 2, f"words have shape {list(words.shape)}, not [out, padded / 8].")
    _of_dtype("order", order, torch.int32)
    _require(order is None or order.dim() == 1, "order has more dimensions than one.")
    _int4(words, scales, zeros, in_features if order is None else order.shape[0], group_size)
    _shape("bias", bias, (words.shape[0],))
    _floating("bias", bias)
    _together(x, words, scales, zeros, order, bias)


def _int4pack(x: Tensor, packed: Tensor, scale_zero: Tensor, order: Tensor | None, bias: Tensor | None,
              in_features: int, group_size: int) -> None:  # fmt: skip
    _input(x, in_features)
    _of_dtype("packed", packed, torch.uint8)
    _of_dtype("scale_zero", scale_zero, torch.bfloat16)
    _require(packed.dim() == 2, f"packed has shape {list(packed.shape)}, not [out, k / 2].")
    _require(group_size in INT4PACK_GROUPS, f"a group of {group_size} is none of {INT4PACK_GROUPS}.")
    out, k = packed.shape[0], packed.shape[1] * 2
    _require(k >= in_features and k % group_size == 0, f"rows of {k} codes do not hold {in_features} columns.")
    _shape("scale_zero", scale_zero, (k // group_size, out, 2))
    _of_dtype("order", order, torch.int32)
    _shape("order", order, (k,))
    _shape("bias", bias, (out,))
    _floating("bias", bias)
    _together(x, packed, scale_zero, order, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    _require(weight.dim() == 2, f"weight has shape {list(weight.shape)}, not [out, in].")
    _input(x, weight.shape[1])
    _shape("bias", bias, (weight.shape[0],))
    _of_dtype("weight", weight, x.dtype)
    _of_dtype("bias", bias, x.dtype)
    _together(x, weight, bias)


def _expert_linear(x: Tensor, experts: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None,
                   in_features: int, group_size: int) -> None:  # fmt: skip
    _input(x, in_features)
    _of_dtype("experts", experts, torch.int32, torch.int64)
    _require(experts.dim() == 1, f"experts have shape {list(experts.shape)}, not [active].")
    _shape("x", x, (1, in_features), (experts.shape[0], in_features))
    _require(words.dim() == 3, f"words have shape {list(words.shape)}, not [experts, out, padded / 8].")
    _int4(words, scales, zeros, in_features, group_size)
    _shape("bias", bias, words.shape[:2])
    _floating("bias", bias)
    _together(x, experts, words, scales, zeros, bias)


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, late: bool) -> None:
    _activation("x", x)
    _shape("weight", weight, (x.shape[-1],))
    _floating("weight", weight)
    _together(x, weight)


def _fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, offset: float,
                        late: bool) -> None:  # fmt: skip
    _rms_norm(x, weight, eps, offset, late)
    _shape("residual", residual, x.shape)
    _of_dtype("residual", residual, x.dtype)
    _together(x, residual)


def _act_and_mul(gate_up: Tensor, approximate: str = "none") -> None:
    _activation("gate_up", gate_up)
    _require(gate_up.shape[-1] % 2 == 0, f"{gate_up.shape[-1]} features are no two halves.")
    _require(approximate in ("none", "tanh"), f"gelu knows 'none' and 'tanh', not '{approximate}'.")


def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Sequence[int]) -> None:
    _activation("q", q, 4)
    _of_dtype("k", k, q.dtype)
    batch, _, tokens, channels = q.shape
    _require(k.dim() == 4, f"k has shape {list(k.shape)}, not [B, heads, T, D].")
    _shape("k", k, (batch, k.shape[1], tokens, channels))
    turned = cos.shape[-1]
    _require(turned % 2 == 0 and turned <= channels, f"{turned} channels of {channels} cannot turn.")
    axes = (cos.shape[0],) if sections else ()
    _shape("cos", cos, (*axes, batch, tokens, turned), (*axes, 1, tokens, turned))
    _shape("sin", sin, cos.shape)
    _floating("cos", cos)
    _floating("sin", sin)
    _require(not sections or sum(sections) * 2 == turned, f"sections {list(sections)} are not half of {turned}.")
    _together(q, k, cos, sin)


def _cache(keys: Tensor, values: Tensor) -> None:
    _of_dtype("keys", keys, *KV_KINDS)
    _of_dtype("values", values, keys.dtype)
    _require(keys.dim() == 4 and values.dim() == 4, "keys and values are [B, heads, slots, D].")
    _shape("values", values, (*keys.shape[:3], values.shape[3]))


def _scales(keys: Tensor, values: Tensor, k_scale: Tensor | None, v_scale: Tensor | None) -> None:
    batch, heads, slots, channels = keys.shape
    plain, whole = keys.dtype in ACTIVATIONS, keys.dtype == torch.int8
    _require(not plain or (k_scale is None and v_scale is None), f"a cache of {keys.dtype} has no scales.")
    _require(not whole or (k_scale is not None and v_scale is not None), "an int8 cache has both scales.")
    _shape("k_scale", k_scale, (heads, channels))
    _shape("v_scale", v_scale, (batch, heads, slots) if whole else (heads, 1))
    _floating("k_scale", k_scale)
    _floating("v_scale", v_scale)


def _counter(name: str, counter: Tensor, batch: int) -> None:
    _of_dtype(name, counter, torch.int32)
    _shape(name, counter, (batch,), (1,))


def _kv_store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, start: Tensor, k_offset: Tensor | None,
              k_scale: Tensor | None, v_scale: Tensor | None) -> None:  # fmt: skip
    _activation("k", k, 4)
    _activation("v", v, 4)
    _cache(keys, values)
    batch, heads, _, channels = keys.shape
    _shape("k", k, (batch, heads, k.shape[2], channels))
    _shape("v", v, (batch, heads, k.shape[2], values.shape[3]))
    _require(k_offset is None or keys.dtype in CODES8, f"a cache of {keys.dtype} has no offsets.")
    _shape("k_offset", k_offset, (heads, channels))
    _floating("k_offset", k_offset)
    _scales(keys, values, k_scale, v_scale)
    _counter("start", start, batch)
    _together(k, v, keys, values, start, k_offset, k_scale, v_scale)


def _decode_attention(q: Tensor, keys: Tensor, values: Tensor, length: Tensor, scale: float, soft_cap: float,
                      k_scale: Tensor | None, v_scale: Tensor | None, sinks: Tensor | None,
                      mask: Tensor | None) -> None:  # fmt: skip
    _activation("q", q, 4)
    _cache(keys, values)
    batch, heads, slots, channels = keys.shape
    _shape("q", q, (batch, q.shape[1], 1, channels))
    _require(q.shape[1] % heads == 0, f"{q.shape[1]} query heads do not share {heads} key heads.")
    _require(soft_cap >= 0, f"a soft cap of {soft_cap} is none.")
    _scales(keys, values, k_scale, v_scale)
    _counter("length", length, batch)
    _shape("sinks", sinks, (q.shape[1],))
    _floating("sinks", sinks)
    _shape("mask", mask, (batch, slots))
    _of_dtype("mask", mask, torch.bool)
    _together(q, keys, values, length, k_scale, v_scale, sinks, mask)


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _halved(gate_up: Tensor, *_: Any) -> Tensor:
    return _widened(gate_up, gate_up.shape[-1] // 2)


_NORM = "Tensor? weight, float eps, float offset, bool late"
_PACKED = "Tensor words, Tensor scales, Tensor zeros"
OPS = {
    "w4a16": Op(
        f"(Tensor x, {_PACKED}, Tensor? order, Tensor? bias, int in_features, int group_size) -> Tensor",
        _w4a16,
        lambda x, words, *_: _widened(x, words.shape[0]),
    ),
    "int4pack": Op(
        "(Tensor x, Tensor packed, Tensor scale_zero, Tensor? order, Tensor? bias, int in_features, int group_size)"
        " -> Tensor",
        _int4pack,
        lambda x, packed, *_: _widened(x, packed.shape[0]),
    ),
    "linear": Op(
        "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        _linear,
        lambda x, weight, bias: _widened(x, weight.shape[0]),
    ),
    "expert_linear": Op(
        f"(Tensor x, Tensor experts, {_PACKED}, Tensor? bias, int in_features, int group_size) -> Tensor",
        _expert_linear,
        lambda x, experts, words, *_: x.new_empty((experts.shape[0], words.shape[1])),
    ),
    "rms_norm": Op(f"(Tensor x, {_NORM}) -> Tensor", _rms_norm, lambda x, *_: _empty(x)),
    "fused_add_rms_norm": Op(
        f"(Tensor x, Tensor residual, {_NORM}) -> (Tensor, Tensor)",
        _fused_add_rms_norm,
        lambda x, *_: (_empty(x), _empty(x)),
    ),
    "silu_and_mul": Op("(Tensor gate_up) -> Tensor", _act_and_mul, _halved),
    "gelu_and_mul": Op("(Tensor gate_up, str approximate) -> Tensor", _act_and_mul, _halved),
    "rotary": Op(
        "(Tensor q, Tensor k, Tensor cos, Tensor sin, int[] sections) -> (Tensor, Tensor)",
        _rotary,
        lambda q, k, *_: (_empty(q), _empty(k)),
    ),
    "kv_store": Op(
        "(Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor start, Tensor? k_offset, Tensor? k_scale, "
        "Tensor(c!)? v_scale) -> ()",
        _kv_store,
        lambda *_: None,
    ),
    "decode_attention": Op(
        "(Tensor q, Tensor keys, Tensor values, Tensor length, float scale, float soft_cap, Tensor? k_scale, "
        "Tensor? v_scale, Tensor? sinks, Tensor? mask) -> Tensor",
        _decode_attention,
        lambda q, keys, values, *_: q.new_empty((*q.shape[:3], values.shape[3])),
    ),
}
"""Name -> op, in the order in which they are listed."""
