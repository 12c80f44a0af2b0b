"""The machine that a figure belongs to, and how fast it moves bytes."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from mmswap.bench.quantiles import Spread, spread
from mmswap.units import MIB

COPIED = 256 * MIB
ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Machine:
    """What a row says of where it was taken."""

    device: str
    library: str
    transformers: str
    python: str
    threads: int

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """This machine, computing on `device`."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
        threads = torch.get_num_threads() if device.type == "cpu" else 0
        return cls(name, torch.__version__, transformers.__version__, platform.python_version(), threads)


def copy_rate(device: torch.device, nbytes: int = COPIED) -> Spread:
    """Bytes a second that a plain copy reads and writes, both counted."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    seconds = []
    for _ in range(ROUNDS + 1):
        wait(device)
        begun = time.perf_counter()
        target.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - begun)
    return spread(seconds[1:]).rate(2 * nbytes)


def wait(device: torch.device) -> None:
    """Returns when everything that was launched has run."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]} x{len(named)}" if named else platform.machine()
