"""What clang makes of the native kernels for every RDNA card that it knows: registers, spills, instructions a weight.

    python benchmarks/native_isa.py [CARD ...] > benchmarks/native_isa.csv      # two minutes, without any card

A row a kernel that `docs/hip.md` shows, and one (`all`) with the most of all kernels. Ends with 1 where one spills. It
counts text: what it cannot know is speed.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "hip_ext"))

from isa import read  # noqa: E402

from mmswap.hip_ext.arch import unfit  # noqa: E402

if TYPE_CHECKING:
    from isa import Kernel

CLANG = "clang++-22"
CSRC = ROOT / "hip_ext" / "csrc"
SHOWN = (
    "mms_k_w4_gemv_f16_m1_g128_s0",
    "mms_k_w4_gemv_f16_m1_g64_s0",
    "mms_k_w4_gemv_bf16_m1_g128_s0",
    "mms_k_w4_gemm_f16_g128",
)
COLUMNS = ("clang", "card", "kernel", "kernels", "vgprs", "lds", "spills", "scratch", "dot2", "wmma", "per_weight")
PER_STEP = 4 * 32
"""Weights that a lane of the GEMV decodes in one step: four rows, 16 bytes of each."""


def rows(clang: str, card: str, kernels: dict[str, Kernel]) -> list[dict[str, str]]:
    """The rows of one card."""
    found = [_row(clang, card, name, [kernels[name]]) for name in SHOWN]
    return [*found, _row(clang, card, "all", list(kernels.values()))]


def _row(clang: str, card: str, name: str, kernels: list[Kernel]) -> dict[str, str]:
    dot2 = sum(count for k in kernels for opcode, count in k.opcodes.items() if "dot2" in opcode)
    loop = f"{len(max(kernels[0].loops(), key=len)) / PER_STEP:.2f}" if "_gemv_" in name else ""
    numbers = (
        len(kernels), max(k.vgprs for k in kernels), max(k.lds for k in kernels), sum(k.spills for k in kernels),
        max(k.scratch for k in kernels), dot2, sum(k.has("v_wmma") for k in kernels),
    )  # fmt: skip
    return dict(zip(COLUMNS, (clang, card, name, *map(str, numbers), loop), strict=True))


def version() -> str:
    """`22.1.8`."""
    said = subprocess.run([CLANG, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"clang version (\S+)", said)
    return found[1] if found else ""


def cards() -> list[str]:
    """Every card of the kernels' kind that this clang knows."""
    words = [CLANG, "--print-supported-cpus", "--target=amdgcn-amd-amdhsa"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    named = re.findall(r"^\s*(gfx\S+)$", done.stdout + done.stderr, re.MULTILINE)
    return sorted({name for name in named if unfit(name) is None})


def compiled(card: str) -> dict[str, Kernel]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.s"
        words = [CLANG, "-x", "hip", f"--offload-arch={card}", "--cuda-device-only", "-nogpuinc", "-nogpulib"]
        words += ["-O3", "-std=c++17", "-S", str(CSRC / "mmswap_hip.cpp"), "-o", str(out)]
        subprocess.run(words, check=True)
        return read(out.read_text(encoding="utf-8"))


def main(named: list[str]) -> int:
    clang, table = version(), csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    table.writeheader()
    bad = 0
    for card in named or cards():
        found = rows(clang, card, compiled(card))
        table.writerows(found)
        bad += any(row["spills"] != "0" or row["scratch"] != "0" for row in found)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
