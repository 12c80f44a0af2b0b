"""What the kernels compile to for cards that are not here: nothing spills, and the GEMV's loop is what it should be.

`benchmarks/isa.py` compiles them as the backend would start them. A count of instructions is no measurement of speed.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
AMD = ("gfx1100", "gfx1101", "gfx1102", "gfx1150", "gfx1151", "gfx1200", "gfx1201")
NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_120")
GEMV = "w4_gemv fp16 group 128", "w4_gemv bf16 group 128"
RDNA = ",".join(GEMV)
ASKED = {
    "gfx1100": f"{RDNA},w4_gemv fp16 group 32,w4_small fp16,dequantise fp16,expert,gemv fp16,fused,gelu_and_mul bf16,"
    "rotary fp16 s,kv_store int8,kv_store e4m3,decode_attention int8,decode_attention e4m3,decode_attention fp16 256",
    "gfx1201": f"{RDNA},w4_small bf16,w4_dot,kv_store e5m2,decode_attention fp16 256",
    "sm_80": f"{RDNA},kv_store e4m3,decode_attention e4m3",
    "sm_90": f"{GEMV[0]},w4_dot bf16",
}
"""The GEMV for every target, each kernel for one, and what differs by card. `isa.csv` holds all for all."""

MOST_PER_WEIGHT = 2.6
MOST_REGISTERS = 96
Row = dict[str, Any]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Rows of `isa.py`, from a process without the interpreter and with a compile cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "OMP_NUM_THREADS": "1"}
    asked = [f"{target}:{ASKED.get(target, GEMV[0])}" for target in (*AMD, *NVIDIA)]
    command = [sys.executable, str(BENCHMARKS / "isa.py"), "--json", *asked]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def kept() -> list[Row]:
    """The rows of `isa.csv`, which holds every kernel for every target."""
    with (BENCHMARKS / "isa.csv").open(encoding="utf-8", newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def unfit(rows: list[Row]) -> list[str]:
    """What is wrong of rows of compiled kernels."""
    wrong = []
    for row in rows:
        loads = dict(reversed(load.split("x")) for load in row["loads_in_loop"].split())
        faults = [name for name in ("spills", "scratch") if int(row[name])]
        if row["kernel"] in ("w4_gemv", "w4_small", "expert_gemv"):
            faults += ["LDS in the loop"] if int(row["shared_in_loop"]) else []
            narrow = "TOGETHER=True" not in row["constants"] and {"32", "64"} & set(loads)
            faults += ["narrow loads"] if narrow or "128" not in loads else []
        if row["kernel"] in ("w4_gemv", "expert_gemv"):
            faults += ["registers"] if int(row["registers"]) > MOST_REGISTERS else []
        if row["case"].split(",")[0] in GEMV and row["target"].startswith("gfx"):
            faults += ["instructions"] if float(row["per_weight"]) > MOST_PER_WEIGHT else []
        if row["kernel"] == "decode_attention" and row["target"].startswith("gfx"):
            faults += ["LDS in the loop"] if int(row["shared_in_loop"]) else []
        wrong += [f"{row['target']} {row['case']}: {fault}" for fault in faults]
    return wrong


@needs_triton
def test_what_is_compiled_here_fits(compiled: list[Row]) -> None:
    assert {(row["target"], row["case"]) for row in compiled} >= {
        (t, case) for t in (*AMD, *NVIDIA) for case in GEMV[:1]
    }
    assert unfit(compiled) == []


@needs_triton
def test_weights_are_loaded_by_sixteen_bytes(compiled: list[Row]) -> None:
    """Each lane of the GEMV: a load for every 32 weights, and those of x; scales and zero points apart."""
    for row in compiled:
        if row["case"] in GEMV and row["target"].startswith("gfx"):
            sizes = dict(part.split("=") for part in row["constants"].split())
            words = int(sizes["BN"]) * int(sizes["BW"]) // (4 * 32 * int(row["warps"]))
            loads = {width: int(count) for count, width in (part.split("x") for part in row["loads_in_loop"].split())}
            assert loads == {"8": words, "16": words, "128": words + 4}


@needs_triton
def test_the_table_is_of_these_kernels(compiled: list[Row]) -> None:
    """isa.csv is what the kernels compile to now, where this Triton wrote it."""
    held = {(row["target"], row["case"], row["kernel"]): row for row in kept()}
    for row in compiled:
        old = held[row["target"], row["case"], row["kernel"]]
        if old["triton"] == row["triton"]:
            assert {name: str(value) for name, value in row.items()} == old


def test_the_table_holds_every_target_and_fits() -> None:
    assert {row["target"] for row in kept()} == {*AMD, *NVIDIA}
    assert len({row["case"] for row in kept()}) > 30
    assert unfit(kept()) == []


def test_a_kernel_that_spills_is_told() -> None:
    row = {**kept()[0], "spills": "3", "registers": "180", "loads_in_loop": "4x64", "shared_in_loop": "2"}
    faults = ("spills", "LDS in the loop", "narrow loads", "registers")
    assert unfit([row]) == [f"{row['target']} {row['case']}: {fault}" for fault in faults]
