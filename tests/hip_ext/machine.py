"""An interpreter of RDNA3's and RDNA4's machine code, as clang writes it down: it runs what a card would run.

    kernels = programs(assembly);  Card(kernels).start("mms_k_norm", 7, 1, 256, bytes(arguments))

Waves of 32 lanes, one instruction at a time; addresses are this process's own, and one that is nobody's is an error.
What it knows of each instruction stands in `machine_vector.py` and `machine_scalar.py`, by AMD's manuals of RDNA3
and RDNA4. No time passes in it: waits, hints and races do nothing. An instruction that it does not know is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import machine_scalar
import machine_vector
import numpy as np
from machine_state import ARGUMENTS, EXEC, LANES, Instruction, Operand, Wave

_IGNORED = re.compile(
    r"s_(wait\w+|barrier_signal|delay_alu|clause|nop|sendmsg|set_inst_prefetch_distance|code_end)|buffer_gl\d_inv"
)
_FLOATS = {
    text: int(np.float32(text).view(np.uint32)) for text in ("0.5", "1.0", "2.0", "4.0", "-0.5", "-1.0", "-2.0", "-4.0")
}
_NAMED = {
    "vcc_lo": 106,
    "vcc_hi": 107,
    "null": 124,
    "m0": 125,
    "exec_lo": EXEC,
    "exec_hi": 127,
    "ttmp7": 115,
    "ttmp9": 117,
}
_REGISTER = re.compile(r"([vs])(?:(\d+)(?:\.([lh]))?|\[(\d+):(\d+)\])")
_MODIFIER = re.compile(r"\b(offset|offset0|offset1|op_sel|op_sel_hi):(\[[\d,]*\]|\S+)")


@dataclass
class Program:
    """One kernel. `at`: label -> place. `user`: the scalar register after those of the arguments' address."""

    code: list[Instruction]
    at: dict[str, int]
    user: int
    lds: int


def programs(text: str) -> dict[str, Program]:
    """Name -> program of an assembly by clang."""
    found = {}
    for name in re.findall(r"^\s+\.amdhsa_kernel (\w+)$", text, re.M):
        body = text[text.index(f"\n{name}:") :]
        about = body[body.index(f".amdhsa_kernel {name}") :]
        user, lds = (int(re.search(rf"\.{key} (\d+)", about)[1]) for key in (  # type: ignore[index]
            "amdhsa_user_sgpr_count", "amdhsa_group_segment_fixed_size"))  # fmt: skip
        code, at = _lines(body[: body.index(".section")])
        found[name] = Program(code, at, user, lds)
    return found


def _lines(body: str) -> tuple[list[Instruction], dict[str, int]]:
    code: list[Instruction] = []
    at = {}
    for line in body.splitlines():
        line = line.split(";")[0].rstrip()
        label = re.match(r"(\.?\w+):", line)
        words = re.match(r"\s+([a-z]\w+)(?:\s+(.*))?$", line)
        if label:
            at[label[1]] = len(code)
        elif words and not _IGNORED.fullmatch(words[1]):
            halves = f"{words[1]} {words[2] or ''}".split(" :: ")
            code.append(Instruction(*_parsed(halves[0]), *(_parsed(halves[1]) if len(halves) > 1 else ())))
    return code, at


def _parsed(text: str) -> tuple[str, list[Operand], dict[str, list[int]]]:
    opcode, _, rest = text.strip().partition(" ")
    options = {name: [int(n, 0) for n in value.strip("[]").split(",")] for name, value in _MODIFIER.findall(rest)}
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", _MODIFIER.sub("", rest)) if word.strip()]
    name = re.sub(r"_e(32|64)$", "", opcode).replace("v_dual_", "v_")
    return _renamed(name), [_operand(word) for word in words], options


def _renamed(name: str) -> str:
    """RDNA4 has new names for old instructions."""
    if name == "s_barrier_wait":
        return "s_barrier"
    return re.sub(r"^(v_(?:max|min|maxmin|minmax))_num_", r"\1_", name.replace("v_mad_co_", "v_mad_"))


def _operand(word: str) -> Operand:
    negative = re.fullmatch(r"-(\|?[vs].*)", word)
    plain = negative[1] if negative else word
    size = plain.startswith("|")
    plain = plain.strip("|")
    register = _REGISTER.fullmatch(plain)
    flags = {"negative": bool(negative), "size": size, "text": word}
    if register:
        first = int(register[2] or register[4])
        count = int(register[5]) - first + 1 if register[5] else 1
        return Operand(register[1], first, count, half={"l": 0, "h": 1}.get(register[3] or "", -1), **flags)
    if plain in ("vcc", "exec"):
        return Operand("s", _NAMED[f"{plain}_lo"], 2, **flags)
    if plain in _NAMED:
        return Operand("s", _NAMED[plain], 1, **flags)
    if plain in _FLOATS:
        return Operand("k", _FLOATS[plain], 1, **flags)
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", plain):
        return Operand("k", int(plain, 0), 1, **flags)
    return Operand("text", 0, 0, **flags)  # a label, `off`


@dataclass
class Card:
    """Runs kernels. `ran`: instructions by name, over all starts."""

    kernels: dict[str, Program]
    ran: dict[str, int] = field(default_factory=dict)

    def start(self, kernel: str, x: int, y: int, threads: int, arguments: bytes) -> None:
        """All blocks, one after another."""
        program = self.kernels[kernel]
        held = np.frombuffer(arguments + bytes(64), dtype=np.uint8).copy()
        with open("/proc/self/mem", "r+b", buffering=0) as memory, np.errstate(all="ignore"):
            for block in range(x * y):
                self._block(program, memory.fileno(), (block % x, block // x), threads, held.ctypes.data)

    def _block(self, program: Program, memory: int, block: tuple[int, int], threads: int, arguments: int) -> None:
        lds = np.full(program.lds, 0xA5, dtype=np.uint8)
        waves = []
        for first in range(0, threads, LANES):
            wave = Wave(memory, lds)
            wave.s[ARGUMENTS], wave.s[ARGUMENTS + 1] = arguments & 0xFFFFFFFF, arguments >> 32
            wave.s[program.user], wave.s[program.user + 1] = block
            wave.s[_NAMED["ttmp9"]], wave.s[_NAMED["ttmp7"]] = block  # where RDNA4 has them
            wave.v[0] = np.arange(first, first + LANES)
            waves.append(self._run(program, wave))
        while waves:  # each to its next barrier
            waves = [wave for wave in waves if next(wave, False)]

    def _run(self, program: Program, wave: Wave) -> Iterator[bool]:
        place, code, ran = 0, program.code, self.ran
        while True:
            instruction = code[place]
            opcode = instruction.opcode
            ran[opcode] = ran.get(opcode, 0) + 1
            place += 1
            if opcode == "s_endpgm":
                return
            if opcode == "s_barrier":
                yield True
            elif opcode.startswith(("s_cbranch", "s_branch")):
                if machine_scalar.taken(opcode, wave):
                    place = program.at[instruction.operands[0].text]
            elif opcode.startswith("s_"):
                machine_scalar.run(wave, instruction)
            else:
                machine_vector.run(wave, instruction)
