"""Scalar instructions of RDNA3, for `machine.py`: whole numbers that the whole wave shares, branches, loads."""

from __future__ import annotations

from collections.abc import Callable

from machine_state import ALL, EXEC, VCC, Instruction, Wave, full, without


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
    if opcode in ("s_add_i32", "s_sub_i32"):
        result = signed(a) + signed(b) if name == "add" else signed(a) - signed(b)
        return result, not -(1 << 31) <= result < 1 << 31
    if name in ("add", "addc"):
        result = a + b + (scc if name == "addc" else 0)
        return result, result > ALL
    if name in ("sub", "subb"):
        result = a - b - (scc if name == "subb" else 0)
        return result, result < 0
    if name in ("min", "max"):
        low = (signed(a) < signed(b)) if "_i" in opcode else a < b
        return (a if low == (name == "min") else b), low == (name == "min")
    simple: dict[str, Callable[[], int]] = {
        "mov": lambda: a, "movk": lambda: signed(a & 0xFFFF, 16), "mul": lambda: a * b,
        "cselect": lambda: a if scc else b, "brev": lambda: int(f"{a:0{bits}b}"[::-1], 2),
    }  # fmt: skip
    if opcode == "s_mul_hi_u32":
        return a * b >> 32, None
    if opcode == "s_mul_hi_i32":
        return signed(a) * signed(b) >> 32, None
    if opcode == "s_abs_i32":
        return abs(signed(a)), a != 0
    return simple[name](), None
