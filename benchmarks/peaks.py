"""Predicted beside true peaks of small towers, for every family: what the dry run is worth on this machine.

    python benchmarks/peaks.py [--widths 96 192] [--families qwen2_vl ...]     # prints, and writes benchmarks/peaks.csv

The truth is read from malloc (tests/swap/truth), in a process of its own for each family. Needs Linux and gcc.
`live` counts tensors alone; `with_scratch` adds what kernels take inside one op. Both are bytes above the state before
the call: inputs and weights are not counted, the result is.
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

import torch

TESTS = Path(__file__).parents[1] / "tests"
TRUTH = TESTS / "swap" / "truth"
OUT = Path(__file__).with_suffix(".csv")
COLUMNS = ("device", "torch", "family", "width", "dtype", "attention", "size", "live", "true_live")
COLUMNS += ("with_scratch", "true_peak", "ratio", "how")
sys.path[:0] = [str(TRUTH), str(TESTS)]


def processor() -> str:
    """The name of the CPU: oneDNN chooses its kernels, and with them their scratch, by it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def rows(families: list[str], width: int, environment: dict[str, str]) -> Iterator[dict[str, object]]:
    """One row a case; a family that cannot run in a dtype on this machine ends early and says so."""
    case = {"dtypes": ["float32", "bfloat16"], "attentions": ["sdpa", "eager"], "sizes": [1, 2, 3], "width": width}
    paths = os.pathsep.join((str(TRUTH), str(TESTS)))
    for family in families:
        command = [sys.executable, str(TRUTH / "run.py"), json.dumps(case | {"families": [family]})]
        env = environment | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{family}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        for line in done.stdout.splitlines():
            row = json.loads(line)
            row |= {"device": processor(), "torch": torch.__version__}
            yield row | {"ratio": f"{row['with_scratch'] / row['true_peak']:.5f}"}


def main() -> None:
    from families import FAMILIES, HELD_OUT
    from malloc_hook import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[96])
    parser.add_argument("--families", nargs="+", default=[*FAMILIES, *HELD_OUT])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for width in chosen.widths:
            for row in rows(chosen.families, width, environment(Path(folder))):
                writer.writerow(row)
                print(*(row[column] for column in COLUMNS[2:]), flush=True)


if __name__ == "__main__":
    main()
