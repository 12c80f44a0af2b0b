"""What Triton's interpreter lacks or gets wrong, for tests: assembly, and rounding and products of bfloat16.

    mend()      # before kernels run, in a process with TRITON_INTERPRET=1

Each instruction is written from its manual: v_dot2 sums in float64 and rounds once to float32; pairs are added in their
own precision. An instruction that is not known raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


class _Results(list):  # type: ignore[type-arg]
    def get_result(self, index: int) -> Any:
        return self[index]


def mend() -> None:
    """Patches this process's interpreter."""
    builder = interpreter.InterpreterBuilder
    cast = builder.cast_impl

    def rounded(self: Any, source: Any, kind: Any) -> Any:
        if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_to_bf16(source.data), tl.bfloat16)
        return cast(self, source, kind)

    dot = builder.create_dot

    def wide(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, *[_widened(factor) for factor in (a, b)], *rest)

    builder.cast_impl = rounded
    builder.create_dot = wide
    builder.create_inline_asm = _assembly


def _assembly(self: Any, text: str, constraints: str, values: Any, types: Any, pure: bool, pack: int) -> Any:
    assert pack == 1
    result = INSTRUCTIONS[text.split()[0]](*[value.data for value in values])
    kind = types[0].scalar
    return _Results([interpreter.TensorHandle(result, kind)])


def _widened(factor: Any) -> Any:
    """bfloat16 as float32: the interpreter multiplies its bits."""
    if factor.dtype.scalar != tl.bfloat16:
        return factor
    return interpreter.TensorHandle((factor.data.astype(np.uint32) << np.uint32(16)).view(np.float32), tl.float32)


def _halves(pair: Any, bf16: bool) -> tuple[Any, Any]:
    words = pair.astype(np.uint32)
    if bf16:
        return (words << np.uint32(16)).view(np.float32), (words & np.uint32(0xFFFF0000)).view(np.float32)
    both = words.view(np.uint16).reshape(*words.shape, 2).view(np.float16)
    return both[..., 0], both[..., 1]


def _to_bf16(x: Any) -> Any:
    """uint16 bits of float32 numbers, to nearest even; NaN stays."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def _dot2(bf16: bool) -> Callable[..., Any]:
    def run(a: Any, b: Any, c: Any) -> Any:
        (a0, a1), (b0, b1) = _halves(a, bf16), _halves(b, bf16)
        return (a0.astype(np.float64) * b0 + a1.astype(np.float64) * b1 + c).astype(np.float32)

    return run


def _add_halves(a: Any, b: Any) -> Any:
    (a0, a1), (b0, b1) = _halves(a, False), _halves(b, False)
    return np.stack([a0 + b0, a1 + b1], -1).view(np.int32)[..., 0]


def _fma_bf16(a: Any, b: Any, c: Any) -> Any:
    (a0, a1), (b0, b1), (c0, c1) = (_halves(x, True) for x in (a, b, c))
    low, high = (_to_bf16(x.astype(np.float64) * y + z).astype(np.uint32) for x, y, z in ((a0, b0, c0), (a1, b1, c1)))
    return (low | (high << np.uint32(16))).view(np.int32)


INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "v_dot2_f32_f16": _dot2(False),
    "v_dot2_f32_bf16": _dot2(True),
    "v_pk_add_f16": _add_halves,
    "add.rn.f16x2": _add_halves,
    "fma.rn.bf16x2": _fma_bf16,
}
