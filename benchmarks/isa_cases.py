"""Calls of the op table at the shapes of real models, on tensors without bytes: what `isa.py` compiles.

op, make = CASES["w4_gemv fp16 group 128"];  arguments = make()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def _empty(*shape: int, dtype: torch.dtype = F16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _int4(out: int, columns: int, group: int, *experts: int) -> tuple[Tensor, Tensor, Tensor]:
    padded = -(-columns // 128) * 128
    groups = -(-padded // (padded if group < 0 else group))
    shapes = (padded // 8, torch.int32), (groups, F16), (groups, torch.uint8)
    words, scales, zeros = (_empty(*experts, out, width, dtype=dtype) for width, dtype in shapes)
    return words, scales, zeros


def _w4a16(rows: int, dtype: torch.dtype, group: int, out: int = 18944, columns: int = 3584) -> tuple[Any, ...]:
    size = -(-columns // 128) * 128 if group < 0 else group
    x, bias = _empty(rows, columns, dtype=dtype), _empty(out, dtype=dtype)
    return x, *_int4(out, columns, group), None, bias, columns, size


def _attention(kind: torch.dtype, width: int, group: int, *, gemma: bool = False) -> tuple[Any, ...]:
    keys = _empty(1, 4, 8192, width, dtype=kind)
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    if kind.itemsize == 1:
        by = (1, 4, 8192) if kind == torch.int8 else (4, 1)
        scales = _empty(4, width, dtype=F32), _empty(*by, dtype=F32)
    extra = (_empty(4 * group), _empty(1, 8192, dtype=torch.bool)) if gemma else (None, None)
    length = _empty(1, dtype=torch.int32)
    return _empty(1, 4 * group, 1, width), keys, keys, length, 0.1, 50.0 if gemma else 0.0, *scales, *extra


def _store(kind: torch.dtype, tokens: int = 1) -> tuple[Any, ...]:
    keys, start = _empty(1, 4, 8192, 128, dtype=kind), _empty(1, dtype=torch.int32)
    k = _empty(1, tokens, 4, 128).transpose(1, 2)
    scale = _empty(4, 128, dtype=F32) if kind.itemsize == 1 else None
    v_scale = _empty(1, 4, 8192, dtype=F32) if kind == torch.int8 else None
    return k, k, keys, keys, start, scale, scale, v_scale


def _rotary(*sections: int) -> tuple[Any, ...]:
    angles = _empty(*((3,) if sections else ()), 1, 1, 128)
    return _empty(1, 28, 1, 128), _empty(1, 4, 1, 128), angles, angles, list(sections)


def _experts(experts: int, chosen: int, out: int, columns: int) -> tuple[Any, ...]:
    weight = _int4(out, columns, 128, experts)
    return _empty(1, columns), _empty(chosen, dtype=torch.int64), *weight, None, columns, 128


def _linear(rows: int, dtype: torch.dtype, out: int) -> tuple[Any, ...]:
    return _empty(rows, 3584, dtype=dtype), _empty(out, 3584, dtype=dtype), None


def _norm(features: int, dtype: torch.dtype, rows: int) -> tuple[Any, ...]:
    return *[_empty(1, features, dtype=dtype)] * rows, _empty(features, dtype=dtype), 1e-6, 0.0, True


Make = Callable[[], tuple[Any, ...]]
CASES: dict[str, tuple[str, Make]] = {
    "w4_gemv fp16 group 128": ("w4a16", lambda: _w4a16(1, F16, 128)),
    "w4_gemv bf16 group 128": ("w4a16", lambda: _w4a16(1, BF16, 128)),
    "w4_gemv fp16 group 64": ("w4a16", lambda: _w4a16(1, F16, 64)),
    "w4_gemv fp16 group 32": ("w4a16", lambda: _w4a16(1, F16, 32)),
    "w4_gemv fp16 group 16": ("w4a16", lambda: _w4a16(1, F16, 16)),
    "w4_gemv fp16 group 48": ("w4a16", lambda: _w4a16(1, F16, 48)),
    "w4_gemv fp16 whole rows": ("w4a16", lambda: _w4a16(1, F16, -1)),
    "w4_small fp16 4 rows": ("w4a16", lambda: _w4a16(4, F16, 128)),
    "w4_small bf16 2 rows": ("w4a16", lambda: _w4a16(2, BF16, 128)),
    "w4_dot fp16 16 rows": ("w4a16", lambda: _w4a16(16, F16, 128)),
    "w4_dot bf16 16 rows group 32": ("w4a16", lambda: _w4a16(16, BF16, 32)),
    "dequantise fp16": ("w4a16", lambda: _w4a16(64, F16, 128, 3584, 3584)),
    "dequantise bf16 group 32": ("w4a16", lambda: _w4a16(64, BF16, 32, 3584, 3584)),
    "expert_gemv fp16": ("expert_linear", lambda: _experts(128, 8, 1536, 2048)),
    "gemv fp16 1 row": ("linear", lambda: _linear(1, F16, 152064)),
    "gemv bf16 4 rows": ("linear", lambda: _linear(4, BF16, 3584)),
    "rms_norm fp16": ("rms_norm", lambda: _norm(3584, F16, 1)),
    "fused_add_rms_norm bf16": ("fused_add_rms_norm", lambda: _norm(8192, BF16, 2)),
    "silu_and_mul fp16": ("silu_and_mul", lambda: (_empty(1, 37888),)),
    "gelu_and_mul fp16": ("gelu_and_mul", lambda: (_empty(1, 20480), "tanh")),
    "gelu_and_mul bf16 erf": ("gelu_and_mul", lambda: (_empty(1, 20480, dtype=BF16), "none")),
    "rotary fp16": ("rotary", lambda: _rotary()),
    "rotary fp16 sections": ("rotary", lambda: _rotary(16, 24, 24)),
    "kv_store fp16": ("kv_store", lambda: _store(F16)),
    "kv_store int8": ("kv_store", lambda: _store(torch.int8)),
    "kv_store e4m3": ("kv_store", lambda: _store(torch.float8_e4m3fn)),
    "kv_store e5m2": ("kv_store", lambda: _store(torch.float8_e5m2)),
    "kv_store fp16 512 tokens": ("kv_store", lambda: _store(F16, 512)),
    "kv_store int8 512 tokens": ("kv_store", lambda: _store(torch.int8, 512)),
    "kv_store e4m3 512 tokens": ("kv_store", lambda: _store(torch.float8_e4m3fn, 512)),
    "decode_attention fp16": ("decode_attention", lambda: _attention(F16, 128, 7)),
    "decode_attention bf16": ("decode_attention", lambda: _attention(BF16, 128, 7)),
    "decode_attention int8": ("decode_attention", lambda: _attention(torch.int8, 128, 7)),
    "decode_attention e4m3": ("decode_attention", lambda: _attention(torch.float8_e4m3fn, 128, 7)),
    "decode_attention e5m2": ("decode_attention", lambda: _attention(torch.float8_e5m2, 128, 7)),
    "decode_attention fp16 64 wide": ("decode_attention", lambda: _attention(F16, 64, 3)),
    "decode_attention fp16 256 wide cap mask": ("decode_attention", lambda: _attention(F16, 256, 2, gemma=True)),
    "decode_attention fp16 one head": ("decode_attention", lambda: _attention(F16, 128, 1)),
}
"""Case -> op and its arguments."""

WITH_CHOICES = (
    "w4_gemv fp16 group 128",
    "w4_gemv bf16 group 128",
    "w4_small fp16 4 rows",
    "w4_dot fp16 16 rows",
    "dequantise fp16",
    "gemv fp16 1 row",
    "gemv bf16 4 rows",
    "decode_attention fp16",
    "decode_attention e4m3",
    "decode_attention fp16 256 wide cap mask",
)
"""Cases of which every configuration that tuning may choose is compiled."""
