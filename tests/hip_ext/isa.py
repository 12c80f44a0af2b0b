"""What a device assembly says of each kernel: registers, spills, scratch, and the instructions of its loops.

    kernels = read(text of clang -S);  kernels["mms_k_join"].vgprs

A loop is what lies between a label and a later branch back to it; an inner one counts to those around it too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel's machine code.

    Attributes:
        lines: (label or "", instruction or "", operands) in order.
        vgprs, sgprs: registers. spills: of both kinds. scratch: bytes of a lane. lds: bytes of a block.
    """

    name: str
    lines: list[tuple[str, str, str]]
    vgprs: int
    sgprs: int
    spills: int
    scratch: int
    lds: int

    @property
    def opcodes(self) -> Counter[str]:
        """How often each instruction stands there; the halves of a dual one each count as themselves."""
        seconds = [rest.split("::")[1].split()[0] for _, _, rest in self.lines if "::" in rest]
        return Counter([opcode for _, opcode, _ in self.lines if opcode] + seconds)

    def has(self, start: str) -> int:
        """Instructions whose names begin so."""
        return sum(count for opcode, count in self.opcodes.items() if opcode.startswith(start))

    def loops(self) -> list[list[tuple[str, str]]]:
        """(opcode, operands) of each loop's instructions, in the order of their ends."""
        at = {label: i for i, (label, _, _) in enumerate(self.lines) if label}
        found = []
        for i, (_, opcode, rest) in enumerate(self.lines):
            target = rest.split()[-1] if opcode.startswith(("s_cbranch", "s_branch")) and rest else ""
            if at.get(target, i) < i:
                found.append([(o, r) for _, o, r in self.lines[at[target] : i + 1] if o])
        return found


def read(text: str) -> dict[str, Kernel]:
    """Name -> kernel, of an assembly by clang for amdgcn."""
    kernels: dict[str, Kernel] = {}
    table = text[text.index(".amdgpu_metadata") :]
    for entry in re.split(r"\n  - (?=\.)", table)[1:]:
        name = re.search(r"^    \.name:\s+(\S+)$", entry, re.M)
        if name is None:
            continue
        values = {key: int(value) for key, value in re.findall(r"^    \.(\w+):\s+(\d+)$", entry, re.M)}
        spills = values["vgpr_spill_count"] + values["sgpr_spill_count"]
        kernels[name.group(1)] = Kernel(
            name.group(1),
            _lines(text, name.group(1)),
            values["vgpr_count"],
            values["sgpr_count"],
            spills,
            values["private_segment_fixed_size"],
            values["group_segment_fixed_size"],
        )
    return kernels


def _lines(text: str, name: str) -> list[tuple[str, str, str]]:
    start = text.index(f"\n{name}:")
    lines: list[tuple[str, str, str]] = []
    for line in text[start : text.index(".Lfunc_end", start)].splitlines():
        line = line.split(";")[0].rstrip()
        label = re.match(r"(\.\w+):", line)
        code = re.match(r"\s+([a-z]\w+)(?:\s+(.*))?$", line)
        if label:
            lines.append((label.group(1), "", ""))
        elif code:
            lines.append(("", code.group(1), code.group(2) or ""))
    return lines
