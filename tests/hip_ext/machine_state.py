"""What a wave of `machine.py` holds: registers, masks, memory; and how operands are read and written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

LANES, EXEC, VCC, ARGUMENTS = 32, 126, 106, 0
ALL = 0xFFFFFFFF
_BITS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
U32 = NDArray[np.uint32]


@dataclass(frozen=True)
class Operand:
    """`kind`: v, s, k (a number, in `first`) or text. `half`: 0 lower, 1 upper, -1 the whole register."""

    kind: str
    first: int
    count: int
    half: int = -1
    negative: bool = False
    size: bool = False
    text: str = ""


@dataclass(frozen=True)
class Instruction:
    """One, or two that run at once."""

    opcode: str
    operands: list[Operand]
    options: dict[str, list[int]]
    opcode2: str = ""
    operands2: list[Operand] = field(default_factory=list)
    options2: dict[str, list[int]] = field(default_factory=dict)


class Wave:
    """32 lanes: `v[register, lane]`, scalar registers `s` as whole numbers, `scc`; bytes of the block in `lds`."""

    def __init__(self, memory: int, lds: NDArray[np.uint8]) -> None:
        self.v = np.full((256, LANES), 0xDEADBEEF, dtype=np.uint32)
        self.s = [0xDEADBEEF] * 128
        self.s[124] = 0
        self.s[EXEC] = ALL
        self.scc = False
        self.memory, self.lds = memory, lds

    @property
    def active(self) -> NDArray[np.bool_]:
        return lanes_of(self.s[EXEC])

    def scalar(self, operand: Operand, wide: bool = False) -> int:
        """A whole number of 32 bits, or of 64; small numbers of 64 keep their sign."""
        if operand.kind == "k":
            return operand.first & (2**64 - 1 if wide else ALL)
        assert operand.kind == "s", operand
        if not wide:
            return self.s[operand.first]
        return self.s[operand.first] | self.s[operand.first + 1] << 32

    def set_scalar(self, operand: Operand, value: int, wide: bool = False) -> None:
        assert operand.kind == "s", operand
        if operand.first == 124:
            return
        self.s[operand.first] = value & ALL
        if wide:
            self.s[operand.first + 1] = value >> 32 & ALL

    def read(self, operand: Operand, at: int = 0) -> U32:
        """32 numbers of 32 bits; of a half its 16."""
        if operand.kind == "v":
            found = self.v[operand.first + at]
            if operand.half >= 0:
                return (found >> np.uint32(16 * operand.half)) & np.uint32(0xFFFF)
            found = found.copy()
        elif at and operand.kind == "k":
            found = np.full(LANES, ALL if operand.first < 0 else 0, dtype=np.uint32)
        else:
            number = self.s[operand.first + at] if operand.kind == "s" else operand.first & ALL
            found = np.full(LANES, number, dtype=np.uint32)
        if operand.size:
            found &= np.uint32(0x7FFFFFFF)
        return found ^ np.uint32(0x80000000) if operand.negative else found

    def read64(self, operand: Operand) -> NDArray[np.uint64]:
        return self.read(operand).astype(np.uint64) | self.read(operand, 1).astype(np.uint64) << np.uint64(32)

    def write(self, operand: Operand, value: U32, at: int = 0) -> None:
        """Into the lanes that are active."""
        assert operand.kind == "v", operand
        register, active = self.v[operand.first + at], self.active
        value = value.astype(np.uint32)
        if operand.half >= 0:
            keep, shift = np.uint32(0xFFFF << 16 * (1 - operand.half)), np.uint32(16 * operand.half)
            value = register & keep | (value & np.uint32(0xFFFF)) << shift
        register[active] = value[active]

    def mask(self, operand: Operand, holds: NDArray[np.bool_]) -> None:
        """A bit a lane; those that are not active are 0."""
        self.set_scalar(operand, mask_of(holds & self.active))

    def load(self, address: int, count: int) -> bytes:
        """Raises OSError: nobody owns them."""
        found = os.pread(self.memory, count, address)
        assert len(found) == count
        return found

    def store(self, address: int, content: bytes) -> None:
        assert os.pwrite(self.memory, content, address) == len(content)


@cache
def lanes_of(mask: int) -> NDArray[np.bool_]:
    return (np.uint32(mask) & _BITS) != 0


def mask_of(lanes: NDArray[np.bool_]) -> int:
    return int(_BITS[lanes].sum(dtype=np.uint64))


@cache
def full(pattern: str, text: str) -> re.Match[str] | None:
    """`re.fullmatch`, remembered."""
    return re.fullmatch(pattern, text)


@cache
def without(pattern: str, text: str) -> str:
    """The text without what the pattern finds, remembered."""
    return re.sub(pattern, "", text)
