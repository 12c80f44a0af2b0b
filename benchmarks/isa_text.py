"""What a compiled kernel's text says: registers, spills, scratch, and the instructions of its hot loop. Not a speed.

    read_amd(kernel.asm["amdgcn"]);  read_nvidia(cubin, folder_of_tools)      # -> Report

The hot loop is the longest loop that holds no other.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_META = re.compile(r"^\s*\.(vgpr_count|vgpr_spill_count|sgpr_spill_count|private_segment_fixed_size):\s*(\d+)", re.M)
_AMD_LABEL, _AMD_JUMP = re.compile(r"^(\.LBB\d+_\d+):"), re.compile(r"^\s+s_cbranch_\w+ (\.LBB\d+_\d+)")
_SASS_LABEL, _SASS_JUMP = re.compile(r"^(\.L_x_\d+):"), re.compile(r"\bBRA(?:\.\w+)* .*?\((\.L_x_\d+)\)")
_AMD_OP = re.compile(r"^\s+((?:v|s|ds|global|buffer|flat|scratch)_[a-z0-9_]+)")
_SASS_OP = re.compile(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)")


@dataclass(frozen=True)
class Report:
    """A kernel for one card.

    Attributes:
        registers: vector registers (VGPRs) or those of a thread (NVIDIA).
        spills: registers that are written to memory for want of room.
        scratch: bytes of memory of a thread's own.
        loop: instructions of the hot loop by name; empty where there is no loop.
    """

    registers: int
    spills: int
    scratch: int
    loop: Counter[str]

    @property
    def shared(self) -> int:
        """Instructions in the hot loop that go through LDS, or NVIDIA's shared memory."""
        return sum(count for name, count in self.loop.items() if re.match(r"ds_|(LDS|STS|LDSM|STSM)\b", name))

    @property
    def loads(self) -> dict[str, int]:
        """Width in bits -> loads of the hot loop."""
        widths: Counter[str] = Counter()
        for name, count in self.loop.items():
            found = re.match(r"(?:global|buffer|flat)_load_(?:b|u|i|d16_u|d16_hi_u|d16_b)(\d+)", name)
            if found:
                widths[found[1]] += count
            elif name.startswith("LDG"):
                found = re.search(r"\.(?:U|S)?(8|16|64|128)\b", name)
                widths[found[1] if found else "32"] += count
        return dict(sorted(widths.items(), key=lambda item: int(item[0])))

    @property
    def instructions(self) -> int:
        """Of the hot loop."""
        return sum(self.loop.values())


def read_amd(text: str) -> Report:
    """Of the assembly that Triton leaves for a gfx target."""
    meta = {name: int(number) for name, number in _META.findall(text)}
    spills = meta["vgpr_spill_count"] + meta["sgpr_spill_count"]
    loop = _hot_loop(text.splitlines(), _AMD_LABEL, _AMD_JUMP, _AMD_OP)
    return Report(meta["vgpr_count"], spills, meta["private_segment_fixed_size"], loop)


def read_nvidia(cubin: bytes, tools: Path) -> Report:
    """Of a cubin, by NVIDIA's cuobjdump and nvdisasm, which come with Triton."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _told(tools / "cuobjdump", "-res-usage", file.name)
        sass = _told(tools / "nvdisasm", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of registers: {usage[:200]}")
    lines = sass.splitlines()
    loop = _hot_loop(lines, _SASS_LABEL, _SASS_JUMP, _SASS_OP)
    spills = sum(bool(re.search(r"\b(STL|LDL)\b", line)) for line in lines)
    return Report(int(found[1]), spills, int(found[2]) + int(found[3]), loop)


def _told(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def _hot_loop(
    lines: list[str], label: re.Pattern[str], jump: re.Pattern[str], operation: re.Pattern[str]
) -> Counter[str]:
    labels = {found[1]: number for number, line in enumerate(lines) if (found := label.match(line))}
    loops = [
        (labels[found[1]], number)
        for number, line in enumerate(lines)
        if (found := jump.search(line)) and labels.get(found[1], number) < number - 1  # not the end's trap
    ]
    inner = [
        one for one in loops if not any(other != one and one[0] <= other[0] and other[1] <= one[1] for other in loops)
    ]
    bodies = [
        Counter(found[1] for line in lines[start : end + 1] if (found := operation.match(line))) for start, end in inner
    ]
    return max(bodies, key=lambda body: sum(body.values()), default=Counter())
