"""What `mmswap plan NAME --image 1344x1344` takes: seconds of the processor and of the clock, for every shipped name
and for tiny folders of other families. A process of its own for each run.

    python benchmarks/plan_time.py                 # appends to benchmarks/plan_time.csv

`first`: nothing is known but what is shipped (for cards by name; a simulated one has everything calculated). `again`:
the same asked a second time. Columns p20, p50 and p80 are of three runs; `load` is how many processes wanted the cores
then: where they are more than the cores, seconds of the processor grow too. No card need be there.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import mmswap.profiles as profiles
from mmswap.bench.quantiles import spread

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
RUNS = 3
CARDS = ("RX 9060 XT 16GB", "sim:16GiB")
FIELDS = ("model", "card", "asked", "cpu_p20", "cpu_p50", "cpu_p80", "wall_p20", "wall_p50", "wall_p80")
FIELDS += ("runs", "load", "device", "versions", "date")


def run(model: str, card: str, cache: str) -> tuple[float, float]:
    """Seconds of the processor and of the clock for one plan.

    Raises:
        subprocess.CalledProcessError: it ended in an error.
    """
    command = [sys.executable, "-m", "mmswap", "plan", model, "--card", card, "--image", "1344x1344", "--json"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "MMSWAP_CACHE": cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - start


def rows(model: str, card: str) -> Iterator[dict[str, object]]:
    taken: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as cache:
            for pairs in taken.values():
                pairs.append(run(model, card, cache))
    for asked, pairs in taken.items():
        row: dict[str, object] = {"model": Path(model).name, "card": card, "asked": asked, "runs": RUNS}
        for kind, values in zip(("cpu", "wall"), zip(*pairs)):
            row |= {f"{kind}_{name}": f"{value:.2f}" for name, value in asdict(spread(values)).items()}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="shipped names or families; all by default")
    parser.add_argument("--card", choices=CARDS, help="one of the cards only")
    asked = parser.parse_args()
    from whole_folders import WHOLE, make_whole

    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))
    common = {"device": f"{platform.machine()}, {os.cpu_count()} cores", "versions": versions}
    file = ROOT / "benchmarks" / "plan_time.csv"
    fresh = not file.exists()
    with tempfile.TemporaryDirectory() as folder, file.open("a", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        for name in asked.names or (*profiles.names(), *WHOLE):
            model = name if name in profiles.names() else str(make_whole(Path(folder) / name, name))
            cards = CARDS if name in profiles.names() else CARDS[-1:]  # only shipped ones differ by it
            for card in cards if asked.card is None else (asked.card,):
                for row in rows(model, card):
                    now = {"load": f"{os.getloadavg()[0]:.1f}", "date": datetime.date.today().isoformat()}
                    writer.writerow({**row, **common, **now})
                out.flush()


if __name__ == "__main__":
    main()
