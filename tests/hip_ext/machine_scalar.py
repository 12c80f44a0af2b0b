"""Scalar instructions of RDNA3 and RDNA4: whole numbers that the whole wave shares, branches, loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from machine_state import ALL, EXEC, VCC, Instruction, Operand, Wave, full, without


def signed(value: int, bits: int = 32) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def taken(opcode: str, wave: Wave) -> bool:
    return {
        "s_branch": True, "s_cbranch_scc0": not wave.scc, "s_cbranch_scc1": wave.scc,
        "s_cbranch_vccz": wave.s[VCC] == 0, "s_cbranch_vccnz": wave.s[VCC] != 0,
        "s_cbranch_execz": wave.s[EXEC] == 0, "s_cbranch_execnz": wave.s[EXEC] != 0,
    }[opcode]  # fmt: skip


COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "ne": lambda a, b: a != b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
}  # fmt: skip
LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
}  # fmt: skip


def run(wave: Wave, instruction: Instruction) -> None:
    """One instruction that is no branch. Raises KeyError, AssertionError: it is not known."""
    opcode, operands = instruction.opcode, instruction.operands
    wide = opcode.endswith(("_b64", "_i64", "_u64"))
    bits = 64 if wide else 32
    whole = (1 << bits) - 1
    if match := full(r"s_load_b(\d+)", opcode):
        base = wave.scalar(operands[1], wide=True) + signed(wave.scalar(operands[2]))
        found = wave.load(base & ~3, int(match[1]) // 8)
        for i in range(int(match[1]) // 32):
            wave.s[operands[0].first + i] = int.from_bytes(found[4 * i : 4 * i + 4], "little")
        return
    if opcode == "s_load_u16":
        base = wave.scalar(operands[1], wide=True) + signed(wave.scalar(operands[2]))
        wave.set_scalar(operands[0], int.from_bytes(wave.load(base, 2), "little"))
        return
    if opcode in FLOATS or opcode == "s_cmp_neq_f32":
        _float(wave, instruction)
        return
    if match := full(r"s_cmpk?_(\w\w)_([iu])(\d+)", opcode):
        values = [wave.scalar(operand, wide=match[3] == "64") for operand in operands]
        if "cmpk" in opcode and match[2] == "i":
            values[1] = signed(values[1] & 0xFFFF, 16) & ALL
        if match[2] == "i":
            values = [signed(value, int(match[3])) for value in values]
        wave.scc = COMPARED[match[1]](*values)
        return
    if match := full(r"s_(\w+)_saveexec_b32", opcode):
        before, given = wave.s[EXEC], wave.scalar(operands[1])
        wave.set_scalar(operands[0], before)
        wave.s[EXEC] = LOGIC[match[1]](given, before) & ALL
        wave.scc = wave.s[EXEC] != 0
        return
    destination = operands[0]
    if opcode.startswith(("s_addk", "s_mulk")):
        old, constant = wave.scalar(destination), signed(wave.scalar(operands[1]) & 0xFFFF, 16)
        result = signed(old) + constant if opcode.startswith("s_addk") else signed(old) * constant
        if opcode.startswith("s_addk"):
            wave.scc = not -(1 << 31) <= result < 1 << 31
        wave.set_scalar(destination, result)
        return
    values = [wave.scalar(operand, wide) for operand in operands[1:]]
    result, scc = _computed(opcode, values, wave.scc, bits)
    wave.set_scalar(destination, result & whole, wide)
    if scc is not None:
        wave.scc = scc


FLOATS: dict[str, Callable[..., np.float32 | int]] = {
    "s_mul_f32": lambda a, b: a * b, "s_add_f32": lambda a, b: a + b, "s_trunc_f32": np.trunc,
    "s_fmac_f32": lambda a, b, c: np.float32(np.float64(a) * b + c),
}  # fmt: skip


def _float(wave: Wave, instruction: Instruction) -> None:
    operands = instruction.operands
    if instruction.opcode == "s_cmp_neq_f32":
        a, b = (_as_float(wave.scalar(operand)) for operand in operands)
        wave.scc = bool(a != b)
        return
    sources = [*operands[1:], *operands[:1]] if instruction.opcode == "s_fmac_f32" else operands[1:]
    numbers = [_as_float(_of(wave, operand)) for operand in sources]
    wave.set_scalar(operands[0], int(np.float32(FLOATS[instruction.opcode](*numbers)).view(np.uint32)))


def _of(wave: Wave, operand: Operand) -> int:
    found = wave.scalar(operand)
    return found ^ 0x80000000 if operand.negative else found


def _as_float(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def _computed(opcode: str, values: list[int], scc: bool, bits: int) -> tuple[int, bool | None]:
    """The result, and what becomes of scc (None: it stays)."""
    a, b = values[0], values[1] if len(values) > 1 else 0
    whole = (1 << bits) - 1
    name = without(r"_[biu](32|64)$", opcode)[2:]
    if name in LOGIC:
        result = LOGIC[name](a, b) & whole
        return result, result != 0
    if match := full(r"lshl(\d)_add", name):
        result = (a << int(match[1])) + b
        return result & ALL, result > ALL
    if name in ("lshl", "lshr", "ashr"):
        by = b & (bits - 1)
        result = {"lshl": a << by, "lshr": a >> by, "ashr": signed(a, bits) >> by}[name] & whole
        return result, result != 0
    if name == "bfe":
        offset, width = b & (bits - 1), b >> 16 & 0x7F
        result = a >> offset & ((1 << width) - 1)
        result = signed(result, width) & whole if "_i" in opcode and width else result
        return result, result != 0
    if opcode in ("s_add_i32", "s_sub_i32", "s_add_co_i32", "s_sub_co_i32"):
        result = signed(a) + signed(b) if name.startswith("add") else signed(a) - signed(b)
        return result, not -(1 << 31) <= result < 1 << 31
    if name in ("add_nc", "sub_nc"):
        return (a + b if name == "add_nc" else a - b), None
    if name in ("add", "addc", "add_co", "add_co_ci"):
        result = a + b + (scc if name in ("addc", "add_co_ci") else 0)
        return result, result > ALL
    if name in ("sub", "subb", "sub_co", "sub_co_ci"):
        result = a - b - (scc if name in ("subb", "sub_co_ci") else 0)
        return result, result < 0
    if name in ("min", "max"):
        low = (signed(a) < signed(b)) if "_i" in opcode else a < b
        return (a if low == (name == "min") else b), low == (name == "min")
    simple: dict[str, Callable[[], int]] = {
        "mov": lambda: a, "movk": lambda: signed(a & 0xFFFF, 16), "mul": lambda: a * b,
        "cselect": lambda: a if scc else b, "brev": lambda: int(f"{a:0{bits}b}"[::-1], 2),
    }  # fmt: skip
    if opcode.startswith("s_cvt_"):
        return _converted(opcode, a), None
    if opcode == "s_mul_hi_u32":
        return a * b >> 32, None
    if opcode == "s_mul_hi_i32":
        return signed(a) * signed(b) >> 32, None
    if opcode == "s_abs_i32":
        return abs(signed(a)), a != 0
    return simple[name](), None


def _converted(opcode: str, a: int) -> int:
    if opcode == "s_cvt_u32_f32":
        return int(min(max(float(np.nan_to_num(_as_float(a))), 0.0), float(ALL)))
    number = {"s_cvt_f32_i32": signed(a), "s_cvt_f32_u32": a, "s_cvt_f32_f16": np.uint16(a & 0xFFFF).view(np.float16)}
    return int(np.float32(number[opcode]).view(np.uint32))
