"""What a window costs: its own bookkeeping, and its restore beside a plain copy of the same bytes in the same run.

    python benchmarks/window.py [--card auto] [--rounds 60]     # prints, and appends rows to benchmarks/window.csv

Bookkeeping: a whole window that evicts N units of 256 bytes each, so that there is next to nothing to copy.
Restore: window and plain copy take turns, so that both meet the same noise. Poisoning, which only the simulated card
does, happens at eviction and is in neither.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from mmswap.bench.quantiles import spread
from mmswap.card import Card, open_card
from mmswap.swap import SwapPool
from mmswap.units import MIB, format_bytes

OUT = Path(__file__).with_suffix(".csv")
COLUMNS = ("date", "device", "torch", "python", "threads", "what", "bytes", "p20_ms", "p50_ms", "p80_ms", "ratio")


def units(count: int, nbytes: int) -> list[tuple[str, nn.Module]]:
    """`count` modules of one parameter of `nbytes` each."""
    made = []
    for index in range(count):
        module = nn.Module()
        module.weight = nn.Parameter(torch.ones(nbytes // 4), requires_grad=False)
        made.append((f"unit {index}", module))
    return made


def bookkeeping(card: Card, rounds: int, count: int) -> list[float]:
    """Milliseconds of a whole window over `count` units that hold next to nothing."""
    pool = SwapPool(units(count, 256), card)
    samples = []
    for _ in range(rounds + 3):
        begin = time.perf_counter()
        with pool.window(layers=count):
            pass
        samples.append((time.perf_counter() - begin) * 1e3)
    pool.close()
    return samples[3:]


def restore(card: Card, rounds: int, count: int, nbytes: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the window's restore, and of plain copies of the same bytes from and to as much memory."""
    pool = SwapPool(units(count, nbytes), card)
    plain = plain_copy(card, count, nbytes)
    ours, theirs = [], []
    for index in range(rounds + 3):
        measured = [lambda: windowed(pool, count), plain]
        for which in (0, 1) if index % 2 else (1, 0):
            (ours if which == 0 else theirs).append(measured[which]())
    pool.close()
    return ours[3:], theirs[3:]


def windowed(pool: SwapPool, count: int) -> float:
    with pool.window(layers=count) as window:
        pass
    return window.report.restore_ms


def plain_copy(card: Card, count: int, nbytes: int) -> Callable[[], float]:
    """A loop of `copy_` calls: what the restore is measured against."""
    on_card = card.device.type == "cuda"
    sources = [torch.ones(nbytes, dtype=torch.uint8, pin_memory=on_card) for _ in range(count)]
    targets = [torch.full((nbytes,), 255, dtype=torch.uint8, device=card.device) for _ in range(count)]

    def once() -> float:
        for target in targets:  # what eviction does on the simulated card: both copies find the caches alike
            target.fill_(255)
        if on_card:
            torch.cuda.synchronize(card.device)
        begin = time.perf_counter()
        for target, source in zip(targets, sources):
            target.copy_(source, non_blocking=True)
        if on_card:
            torch.cuda.synchronize(card.device)
        return (time.perf_counter() - begin) * 1e3

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="auto", help="auto takes an accelerator if there is one, or a simulated card")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    card = open_card(options.card)
    if not card.can_swap:
        card = open_card("sim:4GiB")
    rows: list[tuple[str, int, list[float], float | None]] = []
    for count in (0, 1, 8, 32):
        rows.append((f"bookkeeping of {count} units", 256 * count, bookkeeping(card, options.rounds, count), None))
    for count, nbytes in ((1, 16 * MIB), (8, 16 * MIB), (28, 4 * MIB), (4, 64 * MIB)):
        ours, theirs = restore(card, options.rounds, count, nbytes)
        total = count * nbytes
        ratio = statistics.median(theirs) / statistics.median(ours)
        rows.append((f"restore of {count} x {format_bytes(nbytes)}", total, ours, ratio))
        rows.append((f"plain copy of {count} x {format_bytes(nbytes)}", total, theirs, None))
    write(options.out, card, rows)


def write(out: Path, card: Card, rows: list[tuple[str, int, list[float], float | None]]) -> None:
    """Prints the rows and appends them to the table."""
    day = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    common = (day, card.name, torch.__version__, platform.python_version(), torch.get_num_threads())
    new = not out.exists()
    with out.open("a", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        if new:
            table.writerow(COLUMNS)
        for what, nbytes, samples, ratio in rows:
            taken = spread(samples)
            shown = f"{ratio:.3f}" if ratio is not None else ""
            table.writerow((*common, what, nbytes, f"{taken.p20:.3f}", f"{taken.p50:.3f}", f"{taken.p80:.3f}", shown))
            rate = f"{nbytes / taken.p50 / 1e6:7.1f} GB/s" if nbytes >= MIB else " " * 12
            print(f"{what:34} p20 {taken.p20:8.3f}  p50 {taken.p50:8.3f}  p80 {taken.p80:8.3f} ms {rate}  {shown}")


if __name__ == "__main__":
    main()
