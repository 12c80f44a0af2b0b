"""How many threads decode best on this processor: measured for a moment at load, and said in one sentence.

    choice = choose(lambda: step(token));  torch.set_num_threads(choice.threads);  print(choice.reason)

Decode reads weights, and one core often reads nearly as fast as all of them, while every thread more is waited for at
every op. Knows no model: what is timed is the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FEWER = 0.95
"""More threads must take less than this share of the time of fewer, or the fewer are taken: they disturb nobody."""

SECONDS = 0.1  # for each number of threads
_LAYER = (3072, 2048)  # 12 MiB of bfloat16: more than the private caches of most cores
_PROCESSORS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Threads:
    """How many, and why."""

    threads: int
    reason: str


def choose(
    step: Callable[[], Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cores: int | None = None,
    time_of: Callable[[int], float] | None = None,
) -> Threads:
    """Times a step with each number of threads that may be worth it; torch's setting is as before afterwards.

    What the user set (`OMP_NUM_THREADS`, `MKL_NUM_THREADS`) is kept, if it is a number: nobody follows anything else.

    Args:
        step: what is timed, best one token of the model; None: one large linear layer.
        cores: physical cores that this process may use; None: those of this machine.
        time_of: seconds of a step with that many threads; None: measured.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if _counts(environ.get(name, "")):
            kept = torch.get_num_threads()
            return Threads(kept, f"{_words(kept)}, because {name} is set")
    cores = cores or physical_cores()
    if cores == 1:
        return Threads(1, "one thread: there is one core")
    time_of = time_of or _timer(step or _layer())
    found = {count: time_of(count) for count in candidates(cores)}
    best = min(found.values())
    chosen = next(count for count in sorted(found) if found[count] * FEWER <= best)
    figures = ", ".join(f"{count}: {seconds * 1e3:.3g} ms" for count, seconds in sorted(found.items()))
    return Threads(chosen, f"{_words(chosen)} on {cores} cores; a step takes by threads {figures}")


def _counts(setting: str) -> bool:
    """Whether a variable says how many; OpenMP takes a list too, of which the first number counts."""
    first = setting.split(",")[0].strip()
    return first.isascii() and first.isdigit() and int(first) > 0


def candidates(cores: int) -> list[int]:
    """1, 2, 4, ... and all the physical cores: two threads of a core read through the same door."""
    return [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]


def physical_cores() -> int:
    """Cores that this process may run on, threads of a core counted once, no more than a container grants."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_siblings(processor) for processor in allowed}
    counted = torch.get_num_threads() if siblings == {""} else len(siblings)  # torch asks its own library
    return max(1, min(counted, _granted() or counted))


def _siblings(processor: int) -> str:
    with suppress(OSError):
        file = _PROCESSORS / f"cpu{processor}" / "topology" / "thread_siblings_list"
        return file.read_text(encoding="ascii").strip()
    return ""


def _granted() -> int | None:
    with suppress(OSError, ValueError):
        most, period = _QUOTA.read_text(encoding="ascii").split()
        return None if most == "max" else max(1, int(most) // int(period))
    return None


def _timer(step: Callable[[], Any]) -> Callable[[int], float]:
    """The quickest of the steps within `SECONDS`, the first not counted."""

    def seconds(count: int) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            step()
            best, end = float("inf"), time.perf_counter() + SECONDS
            while best == float("inf") or time.perf_counter() < end:
                begin = time.perf_counter()
                step()
                best = min(best, time.perf_counter() - begin)
            return best
        finally:
            torch.set_num_threads(before)

    return seconds


def _layer() -> Callable[[], Any]:
    weight, x = torch.ones(_LAYER, dtype=torch.bfloat16), torch.ones(_LAYER[1], dtype=torch.bfloat16)
    return lambda: torch.mv(weight, x)


def _words(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"
