"""Predicted beside true peaks of vision towers: what the dry run is worth on this machine.

    python benchmarks/peaks.py                            # all; writes benchmarks/peaks.csv and the tables of it
    python benchmarks/peaks.py --widths 96 192 --families qwen2_vl ... --shipped gemma-3-4b ...

Small towers of every family at every width, and shipped checkpoints' towers at their real widths, cut to a few blocks.
The truth is read from malloc (tests/swap/truth), in a process of its own for each tower. Needs Linux and gcc.
`live` counts tensors alone; `with_scratch` adds what kernels take inside one op. Both are bytes above the state before
the call: inputs and weights are not counted, the result is. `peak_table.py` makes the tables.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peak_table
import torch

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
TRUTH = TESTS / "swap" / "truth"
COLUMNS = ("device", "torch", "kind", "family", "width", "blocks", "dtype", "attention", "size", "live", "true_live")
COLUMNS += ("with_scratch", "true_peak", "ratio", "how")
BOTH = {"dtypes": ["float32", "bfloat16"], "attentions": ["sdpa", "eager"]}
LEAN = {"dtypes": ["float32", "bfloat16"], "attentions": ["sdpa"]}
# (shipped profile, picture, blocks, what to run): below 4 GiB each
SHIPPED: tuple[tuple[str, tuple[int, int], int, dict[str, list[str]]], ...] = (
    ("qwen2.5-vl-7b", (448, 448), 2, BOTH),
    ("qwen2.5-vl-7b", (1008, 672), 2, LEAN),
    ("qwen2-vl-7b", (448, 448), 2, BOTH),
    ("qwen3-vl-8b", (448, 448), 3, BOTH),
    ("gemma-3-4b", (896, 896), 2, LEAN),
    ("paligemma-3b", (448, 448), 2, BOTH),
    ("smolvlm-256m", (512, 512), 2, LEAN),
    ("idefics3-8b", (728, 364), 2, LEAN),
    ("llava-1.5-7b", (336, 336), 3, BOTH),
    ("llava-next-7b", (336, 336), 3, BOTH),
    ("llava-onevision-7b", (384, 384), 2, BOTH),
    ("internvl3-8b", (448, 448), 2, BOTH),
    ("pixtral-12b", (448, 448), 2, BOTH),
    ("mistral-small-3.1-24b", (448, 448), 2, BOTH),
    ("glm-4.1v-9b", (448, 448), 2, BOTH),
)
sys.path[:0] = [str(TRUTH), str(TESTS)]


def processor() -> str:
    """The name of the CPU: oneDNN chooses its kernels, and with them their scratch, by it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def family_rows(family: str, width: int, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    from families import HELD_OUT

    case = {"families": [family], "sizes": [1, 2, 3], "width": width} | BOTH
    kind = "held out" if family in HELD_OUT else "family"
    for row in _rows(TRUTH / "run.py", case, family, environment):
        yield row | {"kind": kind}


def shipped_rows(chosen: list[str], environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    for name, size, blocks, what in SHIPPED:
        if name in chosen:
            case = {"name": name, "size": size, "blocks": blocks} | what
            for row in _rows(HERE / "real_towers.py", case, name, environment):
                yield row | {"kind": "shipped"}


def _rows(script: Path, case: dict[str, Any], name: str, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One row a case; a tower that cannot run in a dtype on this machine ends early and says so."""
    paths = os.pathsep.join((str(TRUTH), str(TESTS)))
    env = environment | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), json.dumps(case)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        row |= {"device": processor(), "torch": torch.__version__}
        yield row | {"ratio": f"{row['with_scratch'] / row['true_peak']:.5f}"}


def main() -> None:
    from families import FAMILIES, HELD_OUT
    from malloc_hook import environment

    every = sorted({name for name, *_ in SHIPPED})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[96])
    parser.add_argument("--families", nargs="*", default=[*FAMILIES, *HELD_OUT])
    parser.add_argument("--shipped", nargs="*", default=every, choices=every, metavar="NAME")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, peak_table.CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        hooked = environment(Path(folder))
        tiny = (row for width in chosen.widths for name in chosen.families for row in family_rows(name, width, hooked))
        for rows in (shipped_rows(chosen.shipped, hooked), tiny):
            for row in rows:
                writer.writerow(row)
                file.flush()
                print(*(row.get(column, "") for column in COLUMNS[2:]), flush=True)
    peak_table.main()


if __name__ == "__main__":
    main()
