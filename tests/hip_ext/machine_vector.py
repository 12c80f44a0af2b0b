"""Vector instructions of RDNA3 and RDNA4, for `machine.py`: arithmetic of 32 lanes. Memory is `machine_memory.py`'s.

Fused products are made in float64 and rounded once. A division's helpers do nothing, and its last step divides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import machine_memory
import numpy as np
from machine_state import ALL, LANES, U32, Instruction, Operand, Wave, full, lanes_of, mask_of

F32, F64, I32, I64, U64 = np.float32, np.float64, np.int32, np.int64, np.uint64
Options = dict[str, list[int]]


def _f(bits: U32) -> Any:
    return bits.view(F32)


def _bits(x: Any) -> U32:
    found: U32 = np.ascontiguousarray(x, dtype=F32).view(np.uint32)
    return found


def _shift(b: U32) -> U32:
    return b & np.uint32(31)


def _i(bits: U32) -> Any:
    return bits.view(I32)


def _u(x: Any) -> U32:
    return np.asarray(x).astype(I64).astype(np.uint32) if np.asarray(x).dtype != np.uint32 else x


def _half(bits: U32) -> Any:
    return (bits & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16).astype(F32)


def _dot(a: U32, b: U32, c: U32, read: Callable[[U32], Any]) -> U32:
    high = np.uint32(16)
    low = read(a).astype(F64) * read(b) + _f(c).astype(F64)
    return _bits((low + read(a >> high).astype(F64) * read(b >> high)).astype(F32))


def _bfloat(bits: U32) -> Any:
    return _f((bits & np.uint32(0xFFFF)) << np.uint32(16))


def _fused(a: U32, b: U32, c: U32) -> U32:
    return _bits((_f(a).astype(F64) * _f(b).astype(F64) + _f(c).astype(F64)).astype(F32))


def _to_i32(x: U32) -> U32:
    return _u(np.clip(np.nan_to_num(np.trunc(_f(x).astype(F64))), -(2.0**31), 2.0**31 - 1).astype(I64))


def _from_byte(n: int, a: U32) -> U32:
    return _bits((a >> np.uint32(8 * n) & np.uint32(255)).astype(F32))


def _signed_field(a: U32, b: U32, c: U32) -> U32:
    """Bits b to b + c - 1, their highest as the sign."""
    up = np.uint32(32) - _shift(c)
    return (_i(a >> _shift(b) << up) >> _i(up)).view(np.uint32)


def _mbcnt(a: U32, b: U32) -> U32:
    below = (np.uint64(1) << np.arange(LANES, dtype=U64)) - np.uint64(1)
    counts = [int(int(mask) & int(low)).bit_count() for mask, low in zip(a, below)]
    return b + np.array(counts, dtype=np.uint32)


PURE: dict[str, Callable[..., U32]] = {
    "mov_b32": lambda a: a, "mov_b16": lambda a: a, "not_b32": lambda a: ~a,
    "add_nc_u32": lambda a, b: a + b, "sub_nc_u32": lambda a, b: a - b, "subrev_nc_u32": lambda a, b: b - a,
    "and_b32": lambda a, b: a & b, "or_b32": lambda a, b: a | b, "xor_b32": lambda a, b: a ^ b,
    "and_b16": lambda a, b: a & b, "or_b16": lambda a, b: a | b, "xor_b16": lambda a, b: a ^ b,
    "lshlrev_b32": lambda a, b: b << _shift(a), "lshrrev_b32": lambda a, b: b >> _shift(a),
    "lshlrev_b16": lambda a, b: b << (a & np.uint32(15)), "lshrrev_b16": lambda a, b: b >> (a & np.uint32(15)),
    "ashrrev_i32": lambda a, b: (_i(b) >> _i(_shift(a))).view(np.uint32),
    "mul_lo_u32": lambda a, b: a * b, "mul_u32_u24": lambda a, b: (a & np.uint32(0xFFFFFF)) * (b & np.uint32(0xFFFFFF)),
    "mul_hi_u32": lambda a, b: (a.astype(U64) * b.astype(U64) >> U64(32)).astype(np.uint32),
    "mul_hi_i32": lambda a, b: _u(_i(a).astype(I64) * _i(b).astype(I64) >> I64(32)),
    "max_i32": lambda a, b: np.maximum(_i(a), _i(b)).view(np.uint32),
    "min_i32": lambda a, b: np.minimum(_i(a), _i(b)).view(np.uint32),
    "max_u32": np.maximum, "min_u32": np.minimum,
    "add3_u32": lambda a, b, c: a + b + c, "lshl_add_u32": lambda a, b, c: (a << _shift(b)) + c,
    "add_lshl_u32": lambda a, b, c: a + b << _shift(c), "lshl_or_b32": lambda a, b, c: a << _shift(b) | c,
    "and_or_b32": lambda a, b, c: a & b | c, "or3_b32": lambda a, b, c: a | b | c,
    "xor3_b32": lambda a, b, c: a ^ b ^ c,
    "bfe_u32": lambda a, b, c: a >> _shift(b) & ((np.uint32(1) << _shift(c)) - np.uint32(1)),
    "bfe_i32": lambda a, b, c: _signed_field(a, b, c),
    "bfi_b32": lambda a, b, c: a & b | ~a & c, "mad_u32_u24": lambda a, b, c: PURE["mul_u32_u24"](a, b) + c,
    "alignbit_b32": lambda a, b, c: ((a.astype(U64) << U64(32) | b) >> _shift(c).astype(U64)).astype(np.uint32),
    "mbcnt_lo_u32_b32": _mbcnt,
    "add_f32": lambda a, b: _bits(_f(a) + _f(b)), "sub_f32": lambda a, b: _bits(_f(a) - _f(b)),
    "subrev_f32": lambda a, b: _bits(_f(b) - _f(a)), "mul_f32": lambda a, b: _bits(_f(a) * _f(b)),
    "max_f32": lambda a, b: _bits(np.fmax(_f(a), _f(b))), "min_f32": lambda a, b: _bits(np.fmin(_f(a), _f(b))),
    "maxmin_f32": lambda a, b, c: _bits(np.fmin(np.fmax(_f(a), _f(b)), _f(c))),
    "minmax_f32": lambda a, b, c: _bits(np.fmax(np.fmin(_f(a), _f(b)), _f(c))),
    "med3_f32": lambda a, b, c: _bits(np.median(np.stack([_f(a), _f(b), _f(c)]), 0)),
    "fma_f32": _fused, "fmaak_f32": _fused, "fmamk_f32": _fused,
    "div_scale_f32": lambda a, b, c: a, "div_fmas_f32": _fused, "div_fixup_f32": lambda a, b, c: _bits(_f(c) / _f(b)),
    "exp_f32": lambda a: _bits(np.exp2(_f(a))), "rcp_f32": lambda a: _bits(F32(1) / _f(a)),
    "rcp_iflag_f32": lambda a: _bits(F32(1) / _f(a)), "rsq_f32": lambda a: _bits(F32(1) / np.sqrt(_f(a))),
    "rndne_f32": lambda a: _bits(np.rint(_f(a))), "trunc_f32": lambda a: _bits(np.trunc(_f(a))),
    "floor_f32": lambda a: _bits(np.floor(_f(a))),
    "cvt_f32_i32": lambda a: _bits(_i(a).astype(F32)), "cvt_f32_u32": lambda a: _bits(a.astype(F32)),
    **{f"cvt_f32_ubyte{n}": partial(_from_byte, n) for n in range(4)},
    "cvt_i32_f32": _to_i32,
    "cvt_u32_f32": lambda a: np.clip(np.nan_to_num(_f(a).astype(F64)), 0, ALL).astype(np.uint32),
    "cvt_f32_f16": lambda a: _bits(_half(a)),
    "cvt_f16_f32": lambda a: _f(a).astype(np.float16).view(np.uint16).astype(np.uint32),
    "dot2_f32_f16": lambda a, b, c: _dot(a, b, c, _half), "dot2_f32_bf16": lambda a, b, c: _dot(a, b, c, _bfloat),
}  # fmt: skip
UPDATING = {
    "fmac_f32": _fused, "dot2acc_f32_f16": PURE["dot2_f32_f16"], "dot2c_f32_f16": PURE["dot2_f32_f16"],
    "dot2acc_f32_bf16": PURE["dot2_f32_bf16"],
}  # fmt: skip
"""The result is added to what the destination holds."""

COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lg": lambda a, b: (a < b) | (a > b),
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "neq": lambda a, b: ~(a == b),
    "ngt": lambda a, b: ~(a > b), "nge": lambda a, b: ~(a >= b), "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b),
}  # fmt: skip
_KINDS: dict[str, Any] = {"f32": F32, "i32": I32, "u32": np.uint32, "i64": I64, "u64": U64}


def run(wave: Wave, instruction: Instruction) -> None:
    """One instruction, or both of a pair: both read before either writes. Raises KeyError: it is not known."""
    if machine_memory.takes(instruction.opcode):
        machine_memory.run(wave, instruction)
        return
    writes = _done(wave, instruction.opcode, instruction.operands, instruction.options)
    if instruction.opcode2:
        writes += _done(wave, instruction.opcode2, instruction.operands2, instruction.options2)
    for operand, value, at in writes:
        wave.write(operand, value, at)


Writes = list[tuple[Operand, U32, int]]


def _done(wave: Wave, opcode: str, operands: list[Operand], options: Options) -> Writes:
    name = opcode[2:]
    if match := full(r"cmp(x?)_(\w+)_(\w\d+)", name):
        _compare(wave, operands, match[1] == "x", match[2], match[3])
        return []
    if name in PURE:
        sources = operands[2:] if name == "div_scale_f32" else operands[1:]
        if name == "div_fmas_f32":
            sources = sources[:3]
        return [(operands[0], PURE[name](*(wave.read(operand) for operand in sources)), 0)]
    if name in UPDATING:
        values = [wave.read(operand) for operand in (*operands[1:], operands[0])]
        return [(operands[0], UPDATING[name](*values), 0)]
    return _OTHERS[name](wave, operands, options)


def _compare(wave: Wave, operands: list[Operand], to_exec: bool, how: str, kind: str) -> None:
    read = wave.read64 if kind.endswith("64") else wave.read
    values = [read(operand) for operand in operands[-2:]]
    if kind in ("u16", "i16"):
        values = [value.astype(np.uint16).view(np.int16 if kind == "i16" else np.uint16) for value in values]
    else:
        values = [value.view(_KINDS[kind]) for value in values]
    holds = COMPARED[how](*values)
    if to_exec:
        wave.s[126] = mask_of(holds & wave.active)
    else:
        wave.mask(operands[0], holds)


def _cndmask(wave: Wave, operands: list[Operand], _: Options) -> Writes:
    chosen = lanes_of(wave.scalar(operands[3]) if len(operands) > 3 else wave.s[106])
    return [(operands[0], np.where(chosen, wave.read(operands[2]), wave.read(operands[1])), 0)]


def _carrying(sign: int, swapped: bool) -> Callable[[Wave, list[Operand], Options], Writes]:
    def step(wave: Wave, operands: list[Operand], _: Options) -> Writes:
        a, b = (wave.read(operand).astype(I64) for operand in operands[2:4])
        a, b = (b, a) if swapped else (a, b)
        given = lanes_of(wave.scalar(operands[4])) if len(operands) > 4 else np.zeros(LANES, dtype=bool)
        result = a + sign * (b + given.astype(I64))
        wave.mask(operands[1], (result > ALL) | (result < 0))
        return [(operands[0], _u(result & ALL), 0)]

    return step


def _both(operand: Operand, value: Any) -> Writes:
    value = value.astype(U64)
    return [(operand, (value & U64(ALL)).astype(np.uint32), 0), (operand, (value >> U64(32)).astype(np.uint32), 1)]


def _mad64(kind: Any) -> Callable[[Wave, list[Operand], Options], Writes]:
    def step(wave: Wave, operands: list[Operand], _: Options) -> Writes:
        a, b = (wave.read(operand).view(I32 if kind is I64 else np.uint32).astype(kind) for operand in operands[2:4])
        return _both(operands[0], (a * b).astype(U64) + wave.read64(operands[4]))

    return step


def _shift64(way: str) -> Callable[[Wave, list[Operand], Options], Writes]:
    def step(wave: Wave, operands: list[Operand], _: Options) -> Writes:
        by, value = (wave.read(operands[1]) & np.uint32(63)).astype(U64), wave.read64(operands[2])
        if way == "ashr":
            return _both(operands[0], value.view(I64) >> by.view(I64))
        return _both(operands[0], value << by if way == "lshl" else value >> by)

    return step


def _first_lane(wave: Wave, operands: list[Operand], _: Options) -> Writes:
    active = np.flatnonzero(wave.active)
    wave.set_scalar(operands[0], int(wave.read(operands[1])[active[0] if len(active) else 0]))
    return []


def _fma_mix(wave: Wave, operands: list[Operand], options: Options) -> Writes:
    """A source is a float32, or one half of a register where `op_sel_hi` says so."""
    upper, halves = options.get("op_sel", [0] * 3), options.get("op_sel_hi", [0] * 3)
    values = []
    for operand, high, is_half in zip(operands[1:], upper, halves, strict=True):
        assert not (is_half and (operand.negative or operand.size)), operand
        bits = wave.read(operand)
        values.append((_half(bits >> np.uint32(16 * high)) if is_half else _f(bits)).astype(F64))
    return [(operands[0], _bits((values[0] * values[1] + values[2]).astype(F32)), 0)]


def _pk_add(wave: Wave, operands: list[Operand], options: Options) -> Writes:
    low, high = options.get("op_sel", [0, 0]), options.get("op_sel_hi", [1, 1])
    sides = []
    for chosen in (low, high):
        a, b = (_half(wave.read(o) >> np.uint32(16 * c)) for o, c in zip(operands[1:], chosen, strict=True))
        sides.append((a + b).astype(np.float16).view(np.uint16).astype(np.uint32))
    return [(operands[0], sides[0] | sides[1] << np.uint32(16), 0)]


def _wmma(half: Callable[[U32], Any]) -> Callable[[Wave, list[Operand], Options], Writes]:
    """Lane l has row l % 16 of A, column l % 16 of B: on RDNA3 all of it, on RDNA4 eight numbers, the upper lanes the
    other eight. Of register i of the sums it has, in that column, row 2 i + l / 16 (RDNA3), i + 8 (l / 16) (RDNA4)."""

    def step(wave: Wave, operands: list[Operand], _: Options) -> Writes:
        assert wave.s[126] == ALL
        matrices, count = [], operands[1].count
        for operand in operands[1:3]:
            words = np.stack([wave.read(operand, i) for i in range(count)])  # [word, lane]
            if count == 4:
                words = np.concatenate([words[:, :16], words[:, 16:]])
                words = np.concatenate([words, words], 1)
            assert np.array_equal(words[:, :16], words[:, 16:]), "the upper lanes hold other numbers"
            pairs = np.stack([half(words), half(words >> np.uint32(16))], 1).reshape(16, LANES)
            matrices.append(pairs[:, :16].astype(F64))  # [k, row or column]
        product = matrices[0].T @ matrices[1]
        lane = np.arange(LANES)
        writes = []
        for i in range(8):
            row = 2 * i + lane // 16 if count == 8 else i + 8 * (lane // 16)
            found = product[row, lane % 16] + _f(wave.read(operands[3], i))
            writes.append((operands[0], _bits(found.astype(F32)), i))
        return writes

    return step


def _scalar_rcp(wave: Wave, operands: list[Operand], _: Options) -> Writes:
    value = np.uint32(wave.scalar(operands[1])).view(F32)
    wave.set_scalar(operands[0], int((F32(1) / value).view(np.uint32)))
    return []


_OTHERS: dict[str, Callable[[Wave, list[Operand], Options], Writes]] = {
    "s_rcp_f32": _scalar_rcp,
    "cndmask_b32": _cndmask, "readfirstlane_b32": _first_lane, "fma_mix_f32": _fma_mix, "pk_add_f16": _pk_add,
    "add_co_u32": _carrying(1, False), "add_co_ci_u32": _carrying(1, False), "sub_co_u32": _carrying(-1, False),
    "sub_co_ci_u32": _carrying(-1, False), "subrev_co_u32": _carrying(-1, True),
    "subrev_co_ci_u32": _carrying(-1, True),
    "mad_u64_u32": _mad64(U64), "mad_i64_i32": _mad64(I64), "lshlrev_b64": _shift64("lshl"),
    "lshrrev_b64": _shift64("lshr"), "ashrrev_i64": _shift64("ashr"),
    "wmma_f32_16x16x16_f16": _wmma(_half), "wmma_f32_16x16x16_bf16": _wmma(_bfloat),
}  # fmt: skip
