"""How much of a card's memory bandwidth each op of a decode step reaches, by every backend that is there, and by torch.

    python benchmarks/native_kernels.py                # the first card, or the processor; to kernels_DEVICE.csv
    python benchmarks/native_kernels.py --device cpu   # a tiny model: whether it runs; --models 0.5B for figures

`gbs`: bytes that a call must move once, over the middle of its times; `share`: of what a plain copy moves here.
Each call has arguments of its own, more of them than a cache holds. On a card the calls are captured in one graph, so
that the host's part does not count; `timing` says where that was not possible. `off`: from the reference, relative.
A result that is wrong is told, and ends the program with 1. Nothing here was run on an AMD card: see docs/hip.md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from native_cases import MODELS, Case, cases
from torch import Tensor

from mmswap.bench.machine import Machine, copy_rate, wait
from mmswap.errors import told
from mmswap.llm.ops import reference
from mmswap.llm.ops.backends import HOMES, Backend, _load, missing
from mmswap.llm.ops.trial import RIGHT
from mmswap.units import GIB, MIB

COLUMNS = (
    "date", "device", "torch", "runtime", "triton", "python", "load", "copy_gbs", "model", "op", "shape", "dtype",
    "backend", "p20_us", "p50_us", "p80_us", "gbs", "share", "timing", "off",
)  # fmt: skip
COLD = {"cuda": GIB // 2, "cpu": 32 * MIB}
"""Bytes over which the calls of one row go: more than a cache holds."""

MOST, SECONDS = 256, 0.1
DTYPES = ("float16", "bfloat16")
Call = Callable[[], Any]


def backends_on(device: torch.device, asked: Sequence[str]) -> dict[str, Backend]:
    """Those that are there; why another is not, is printed."""
    found = {}
    for name in asked or HOMES:
        backend: Any = _load(name)
        if not isinstance(backend, str) and missing(name, device) is not None and hasattr(backend, "prepare"):
            backend.prepare(device)
        why = backend if isinstance(backend, str) else backend.available(device)
        if why is None:
            found[name] = backend
        else:
            print(f"{name} is not there: {why}")
    return found


def versions(device: torch.device) -> dict[str, str]:
    """What a row says of where it was taken."""
    machine = Machine.of(device)
    runtime = (
        f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}" if torch.version.cuda else ""
    )
    try:
        import triton

        known = str(triton.__version__)
    except Exception:  # a broken one is no reason not to measure
        known = ""
    today = datetime.date.today().isoformat()
    return {
        "date": today, "device": machine.device, "torch": machine.library, "runtime": runtime, "triton": known,
        "python": machine.python,
    }  # fmt: skip


def difference(op: str, run: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """From the reference on equal arguments: the largest difference of the largest number."""
    own, others = _copy(arguments), _copy(arguments)
    got, wanted = run(*own), reference.IMPLEMENTATIONS[op].run(*others)
    if op == "kv_store":
        got, wanted = own[2:4], others[2:4]
    pairs = zip(got, wanted) if isinstance(got, tuple) else [(got, wanted)]
    return max(float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp_min(1e-30)) for a, b in pairs)


def microseconds(calls: list[Call], device: torch.device) -> tuple[list[float], str]:
    """p20, p50, p80 of one call, and how they were taken."""
    calls[0]()
    wait(device)
    if device.type != "cuda":
        return _quantiles(_by_clock(calls, device)), "clock"
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
    except Exception as error:  # what cannot be captured is measured with the host's part
        wait(device)
        return _quantiles(_by_events(lambda: [call() for call in calls], len(calls))), f"events ({told(error)[:60]})"
    return _quantiles(_by_events(graph.replay, len(calls))), "graph"


def _by_clock(calls: list[Call], device: torch.device) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        for call in calls:
            begun = time.perf_counter()
            call()
            times.append((time.perf_counter() - begun) * 1e6)
            if time.perf_counter() > end and len(times) >= 3:
                break
    return times


def _by_events(run: Call, count: int) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) * 1e3 / count)
    return times


def _quantiles(times: list[float]) -> list[float]:
    times.sort()
    return [times[len(times) * share // 100] for share in (20, 50, 80)]


def _copy(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments)


def rows(case: Case, dtype: torch.dtype, device: torch.device, found: dict[str, Backend]) -> list[dict[str, str]]:
    """One for each way that takes the call."""
    count = max(1, min(MOST, COLD[device.type] // max(case.moved, 1)))
    first = case.make()
    sets = [first, *(_copy(first) for _ in range(count - 1))]
    ways: list[tuple[str, Callable[..., Any]]] = []
    for name, backend in found.items():
        implementation = backend.IMPLEMENTATIONS.get(case.op)
        if implementation is not None and implementation.refuses(*sets[0]) is None:
            ways.append((name, implementation.run))
    if case.plain is not None:
        ways.append(("plain torch", case.plain))
    made = []
    for name, run in ways:
        off = 0.0 if name == reference.NAME else difference(case.op, run, sets[0])
        times, timing = microseconds([lambda run=run, a=a: run(*a) for a in sets], device)
        rate = case.moved / times[1] / 1e3
        made.append({
            "op": case.op, "shape": case.shape, "dtype": str(dtype)[6:], "backend": name,
            **{f"p{share}_us": f"{value:.1f}" for share, value in zip((20, 50, 80), times)},
            "gbs": f"{rate:.2f}", "timing": timing, "off": f"{off:.1e}",
        })  # fmt: skip
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: 0.5B and 7B on a card, tiny elsewhere")
    parser.add_argument("--backends", nargs="+", choices=HOMES, default=[], help="default: all that are there")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: both on a card, else bfloat16")
    parser.add_argument("--out", type=Path, help="the CSV; default: kernels_DEVICE.csv beside this file")
    chosen = parser.parse_args()
    device = torch.device(chosen.device, 0) if chosen.device == "cuda" else torch.device(chosen.device)
    dtypes = chosen.dtypes or (DTYPES if device.type == "cuda" else DTYPES[1:])
    models = chosen.models or (["0.5B", "7B"] if device.type == "cuda" else ["tiny"])
    same, copied = versions(device), copy_rate(device).p50 / 1e9
    same["copy_gbs"] = f"{copied:.1f}"
    print(", ".join(f"{name} {value}" for name, value in same.items() if value))
    found, wrong = backends_on(device, chosen.backends), 0
    path = chosen.out or Path(__file__).with_name(f"kernels_{device.type}.csv")
    with path.open("w", newline="", encoding="utf-8") as file, torch.inference_mode():
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for model in models:
            for dtype in (getattr(torch, name) for name in dtypes):
                for case in cases(model, dtype, device):
                    for row in rows(case, dtype, device, found):
                        row |= {"model": model, "share": f"{float(row['gbs']) / copied:.3f}"}
                        row["load"] = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
                        writer.writerow(same | row)
                        bad = not float(row["off"]) <= RIGHT[dtype]
                        wrong += bad
                        print(
                            f"{model:5s}{case.op:20s}{case.shape:38s}{row['dtype']:10s}{row['backend']:13s}"
                            f"{row['p50_us']:>10s} us{row['gbs']:>9s} GB/s{float(row['share']):7.1%}"
                            + ("  WRONG, off " + row["off"] if bad else ""),
                            flush=True,
                        )
    print(f"{path.name} is written" + (f"; {wrong} results are wrong" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
