"""Loads and stores of RDNA3 and RDNA4, of the card's memory and a block's own (LDS), and moves between lanes."""

from __future__ import annotations

import re

import numpy as np
from machine_state import LANES, Instruction, Operand, Wave
from numpy.typing import NDArray

_GLOBAL = re.compile(r"global_(load|store)_(?:(d16)_(hi_)?)?([buid])(\d+)")
_TOGETHER = 1 << 16  # bytes
_LDS = re.compile(r"ds_(load|store)_(2addr_(?:stride64_)?)?([bui])(\d+)")


def takes(opcode: str) -> bool:
    return opcode.startswith(("global_", "ds_"))


def run(wave: Wave, instruction: Instruction) -> None:
    """Raises OSError: nobody owns the address. AssertionError: the instruction is not known."""
    opcode, operands, options = instruction.opcode, instruction.operands, instruction.options
    if opcode == "ds_bpermute_b32":
        _permute(wave, operands, options)
    elif opcode.startswith("ds_"):
        _local(wave, opcode, operands, options)
    else:
        _global(wave, opcode, operands, options)


def _permute(wave: Wave, operands: list[Operand], options: dict[str, list[int]]) -> None:
    """Lane l takes the number of lane address / 4; of one that is not active, 0."""
    address = wave.read(operands[1]) + np.uint32(options.get("offset", [0])[0])
    data = np.where(wave.active, wave.read(operands[2]), np.uint32(0))
    wave.write(operands[0], data[(address >> np.uint32(2)) % np.uint32(LANES)])


def _global(wave: Wave, opcode: str, operands: list[Operand], options: dict[str, list[int]]) -> None:
    match = _GLOBAL.fullmatch(opcode)
    assert match is not None, opcode
    way, high, kind, bits = match[1], bool(match[3]), match[4], int(match[5])
    data, at, base = (
        (operands[0], operands[1], operands[2]) if way == "load" else (operands[1], operands[0], operands[2])
    )
    offset = options.get("offset", [0])[0]
    if base.text == "off":
        addresses = [int(address) + offset for address in wave.read64(at)]
    else:
        addresses = [wave.scalar(base, wide=True) + int(address) + offset for address in wave.read(at)]
    half = Operand("v", data.first, 1, half=int(high)) if match[2] else data
    active = np.flatnonzero(wave.active)
    if way == "store":
        for lane in active:
            wave.store(addresses[lane], _bytes(wave, half, lane, bits // 8))
    elif len(active):
        contents = _gathered(wave, [addresses[lane] for lane in active], bits // 8)
        _put(wave, half, active, contents, signed=kind == "i", narrow=bool(match[2]))


def _gathered(wave: Wave, addresses: list[int], size: int) -> NDArray[np.uint8]:
    """[lane, byte]; by one read where the addresses lie together."""
    low, high = min(addresses), max(addresses) + size
    if high - low <= _TOGETHER:
        try:
            held = np.frombuffer(wave.load(low, high - low), dtype=np.uint8)
            places = np.array([address - low for address in addresses])
            return held[places[:, None] + np.arange(size)]
        except OSError:
            pass  # something between them is nobody's
    return np.stack([np.frombuffer(wave.load(address, size), dtype=np.uint8) for address in addresses])


def _local(wave: Wave, opcode: str, operands: list[Operand], options: dict[str, list[int]]) -> None:
    match = _LDS.fullmatch(opcode)
    assert match is not None, opcode
    way, size = match[1], int(match[4]) // 8
    data, at = (operands[0], operands[1]) if way == "load" else (operands[1], operands[0])
    if match[2]:
        step = size * (64 if "stride64" in match[2] else 1)
        offsets = [options.get(name, [0])[0] * step for name in ("offset0", "offset1")]
    else:
        offsets = [options.get("offset", [0])[0]]
    addresses = wave.read(at).astype(np.int64)  # before anything is loaded over it
    active = np.flatnonzero(wave.active)
    for index, offset in enumerate(offsets):
        begins = addresses[active] + offset
        assert not len(begins) or begins.max() + size <= len(wave.lds), f"{opcode} beyond {len(wave.lds)} bytes"
        places = begins[:, None] + np.arange(size)
        if way == "load":
            place = Operand("v", data.first + index * size // 4, max(size // 4, 1))
            _put(wave, place, active, wave.lds[places], signed=match[3] == "i", narrow=False)
        else:
            given = operands[1 + index]
            for lane, begin in zip(active, begins):
                wave.lds[begin : begin + size] = np.frombuffer(_bytes(wave, given, lane, size), dtype=np.uint8)


def _put(
    wave: Wave, operand: Operand, lanes: NDArray[np.intp], contents: NDArray[np.uint8], *, signed: bool, narrow: bool
) -> None:
    """[lane, byte] into registers of these lanes."""
    size = contents.shape[1]
    if size >= 4:
        words = np.ascontiguousarray(contents).view(np.uint32)
        for index in range(size // 4):
            wave.v[operand.first + index, lanes] = words[:, index]
        return
    kind = {(1, False): np.uint8, (1, True): np.int8, (2, False): np.uint16, (2, True): np.int16}[size, signed]
    numbers = np.ascontiguousarray(contents).view(kind)[:, 0].astype(np.int64).astype(np.uint32)
    if narrow:  # the other half stays
        shift = 16 * operand.half
        old = wave.v[operand.first, lanes] & np.uint32(0xFFFFFFFF & ~(0xFFFF << shift))
        numbers = old | (numbers & np.uint32(0xFFFF)) << np.uint32(shift)
    wave.v[operand.first, lanes] = numbers


def _bytes(wave: Wave, operand: Operand, lane: int, size: int) -> bytes:
    if size < 4:
        return int(wave.read(operand)[lane]).to_bytes(4, "little")[:size]
    return wave.v[operand.first : operand.first + size // 4, lane].tobytes()
