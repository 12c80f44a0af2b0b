"""The machine code of every kernel for AMD cards, by clang without ROCm: what no processor shows.

Counted in the text; a loop's instructions are all that stand in it, waits and hints too. What it cannot show: speed.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from isa import Kernel, read
from native import CARDS, CLANG, CSRC, assembly, compiled, shared_folder

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import native_isa  # noqa: E402

with (ROOT / "benchmarks" / "native_isa.csv").open(encoding="utf-8", newline="") as _file:
    COUNTED = list(csv.DictReader(_file))
PAGE = (ROOT / "docs" / "hip.md").read_text(encoding="utf-8")
FAMILIES = {"w4_gemv": 22, "w4_gemm": 4, "experts": 4, "linear": 4, "attention": 15}
ALONE = ("act", "norm", "rotary", "take", "gptq", "kv", "join")
WMMA = {"gfx1100": 11, "gfx1101": 11, "gfx1151": 11, "gfx1200": 12, "gfx1201": 12}
PER_STEP = 4 * 32
"""Weights that a lane decodes in one step: four rows, 16 bytes of each."""

MOST = {"g128": 2.5, "g64": 2.55, "g16": 3.05}
"""Instructions of the loop for a weight, by what groups are a multiple of: small ones have more scales."""

WITHOUT_BF16 = 0.75
"""More of them for bfloat16 where there are no products of its pairs (RDNA2)."""


@pytest.fixture(scope="module", params=CARDS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Kernel]]:
    return request.param, read(assembly(request.param, shared_folder(tmp_path_factory)))


def test_no_kernel_spills_or_has_scratch(kernels: tuple[str, dict[str, Kernel]]) -> None:
    card, found = kernels
    assert Counter(name for name in found if name.removeprefix("mms_k_") in ALONE).total() == len(ALONE)
    assert {family: sum(f"mms_k_{family}_" in name for name in found) for family in FAMILIES} == FAMILIES
    bad = [k.name for k in found.values() if k.spills or k.scratch or k.has("scratch_") or k.has("buffer_")]
    assert not bad, f"{card}: {bad}"
    assert max(k.lds for k in found.values()) <= 32 << 10
    assert max(k.vgprs for k in found.values()) <= 192


def test_the_int4_loop_is_short_and_reads_16_bytes_at_a_time(kernels: tuple[str, dict[str, Kernel]]) -> None:
    card, found = kernels
    for name, kernel in found.items():
        match = re.fullmatch(r"mms_k_w4_gemv_(b?f16)_m1_(g\d+)_s\d", name)
        if match is None:
            continue
        loop = max(kernel.loops(), key=len)
        opcodes = [opcode for opcode, _ in loop]
        words = [opcode for opcode in opcodes if opcode.startswith("global_load_") and opcode.endswith(("x4", "b128"))]
        assert len(words) == 4 + 4, f"{card} {name}: {len(words)} loads of 16 bytes, of weights and of x"
        assert not any(opcode.startswith("ds_") for opcode in opcodes), f"{card} {name}: LDS in the loop"
        most = MOST[match[2]] + (WITHOUT_BF16 if card not in WMMA and match[1] == "bf16" else 0)
        assert len(loop) / PER_STEP <= most, f"{card} {name}: {len(loop) / PER_STEP:.2f} instructions a weight"


def test_products_are_of_pairs(kernels: tuple[str, dict[str, Kernel]]) -> None:
    card, found = kernels
    for name, kernel in found.items():
        if not name.startswith(("mms_k_w4_gemv_", "mms_k_linear_")):
            continue
        pairs = sum(count for opcode, count in kernel.opcodes.items() if "dot2" in opcode)
        if "bf16" in name and card not in WMMA:
            assert not pairs
        else:
            kind = "f32_bf16" if "bf16" in name else "f32_f16"
            of_kind = sum(count for opcode, count in kernel.opcodes.items() if "dot2" in opcode and kind in opcode)
            assert pairs == of_kind >= (64 if "w4" in name else 16), f"{card} {name}: {kernel.opcodes}"


def test_the_gemm_uses_matrix_units_where_there_are_some(kernels: tuple[str, dict[str, Kernel]]) -> None:
    card, found = kernels
    for name, kernel in found.items():
        if name.startswith("mms_k_w4_gemm_"):
            kind = "v_wmma_f32_16x16x16_bf16" if "bf16" in name else "v_wmma_f32_16x16x16_f16"
            assert kernel.has(kind) == (0 if card not in WMMA else 16 if "bf16" in name else 8), f"{card} {name}"


def test_the_table_of_counts_is_what_this_compiler_makes(kernels: tuple[str, dict[str, Kernel]]) -> None:
    """benchmarks/native_isa.csv; of another compiler than the one that it was made by, what no compiler may change."""
    card, found = kernels
    counted = [row for row in COUNTED if row["card"] == card]
    clang = counted[0]["clang"]
    told = native_isa.COLUMNS if clang == native_isa.version() else ("card", "kernel", "kernels", "spills", "scratch")
    made = native_isa.rows(clang, card, found)
    assert [[row[name] for name in told] for row in made] == [[row[name] for name in told] for row in counted]


def test_no_card_spills_and_the_page_has_the_tables_counts() -> None:
    assert {row["card"] for row in COUNTED} >= {*CARDS, "gfx1010", "gfx1036", "gfx1103", "gfx1153", "gfx1250"}
    assert not [row for row in COUNTED if row["spills"] != "0" or row["scratch"] != "0"]
    page = [line.split("|")[2:5] for line in PAGE.splitlines() if line.startswith("| int4 ")]
    shown = {(row["kernel"], row["card"]): row for row in COUNTED}
    for kernel, cells in zip(native_isa.SHOWN, page, strict=True):
        for card, cell in zip(("gfx1030", "gfx1100", "gfx1201"), cells, strict=True):
            row = shown[kernel, card]
            wanted = row["per_weight"] or (f"{row['wmma']} WMMA" if card in WMMA else "pairs")
            assert cell.strip().startswith(f"{row['vgprs']}, {wanted}"), (kernel, card)
    assert f"all {COUNTED[-1]['kernels']} kernels" in PAGE


def test_a_runtime_compiler_needs_no_header(tmp_path: Path) -> None:
    """As hiprtc sees it: kernels alone, no system headers."""
    if shutil.which(CLANG) is None:
        pytest.skip(f"there is no {CLANG}")
    words = [CLANG, "-x", "hip", "--offload-arch=gfx1030", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-nostdinc"]
    compiled([*words, "-std=c++17", "-DMMS_RTC", "-fsyntax-only", str(CSRC / "kernels.h")])


@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_nvcc_compiles_the_same_source(tmp_path: Path, card: str) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    words = ["nvcc", "-x", "cu", f"-arch={card}", "-O3", "-std=c++17", "-cubin", "-Xptxas", "-v"]
    words += [str(CSRC / "mmswap_hip.cpp"), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    spills = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spills) == int(COUNTED[-1]["kernels"])
    assert not any(map(int, spills))
