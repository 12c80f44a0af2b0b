"""Peak against pixels for the vision towers of shipped checkpoints: dry runs into peak_curves.csv, and docs/peaks.png.

    python benchmarks/peak_curves.py              # both; about two minutes
    python benchmarks/peak_curves.py --draw       # the picture alone, from the CSV as it is (needs matplotlib)

No card is used and no weights are read: what is drawn is predicted, for a card with torch's own allocator.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CSV = Path(__file__).with_suffix(".csv")
PICTURE = Path(__file__).parents[1] / "docs" / "peaks.png"
COLUMNS = ("name", "attention", "width", "height", "patches", "live", "reserved", "least_free")
TOWERS = {  # profile: (title, what its processor does)
    "qwen2.5-vl-7b": ("Qwen2.5-VL 7B", "as large as it is"),
    "qwen3-vl-8b": ("Qwen3-VL 8B", "as large as it is"),
    "mistral-small-3.1-24b": ("Mistral Small 3.1 24B", "at most 1540 a side"),
    "gemma-3-4b": ("Gemma 3 4B", "always 896 x 896"),
    "llava-onevision-7b": ("LLaVA-OneVision 7B", "2 to 37 tiles of 384"),
    "smolvlm-256m": ("SmolVLM 256M", "17 tiles of 512"),
}
SIDES = (224, 336, 448, 560, 672, 896, 1120, 1344, 1568, 1792, 2240)
COLOURS = {"eager": "#c2410c", "sdpa": "#0f5fa8"}
LABELS = {"eager": "eager attention", "sdpa": "SDPA"}
INK, FAINT = "#1f2937", "#6b7280"


def rows() -> Iterator[dict[str, Any]]:
    """One row for each tower, attention and size of a square picture."""
    from mmswap.blueprint import Blueprint
    from mmswap.swap import kernels
    from mmswap.swap.dry_run import DryRun
    from mmswap.swap.replay import TORCH
    from mmswap.swap.scratch import ScratchTable
    from mmswap.vision.tower import find_tower

    for name in TOWERS:
        for attention in COLOURS:
            blueprint = Blueprint.of(name, attention=attention)
            rules = ScratchTable(None, rules=kernels.on_a_card)
            dry_run = DryRun(blueprint.model, policy=TORCH, scratch=rules)
            for side in SIDES:
                picture = blueprint.picture(side, side)
                peak = dry_run.tower_peak(lambda model, call: find_tower(model).run(call), picture.call)
                values = (name, attention, side, side, picture.patches, peak.live, peak.total, peak.least_free())
                yield dict(zip(COLUMNS, values))


def write() -> None:
    with CSV.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows():
            writer.writerow(row)
            file.flush()


def draw() -> None:
    """Six panels with the same axes: live bytes as a line, what the allocator must have as a band above it."""
    import matplotlib.pyplot as plt

    with CSV.open(newline="") as file:
        found = list(csv.DictReader(file))
    plt.rcParams |= {"font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "axes.edgecolor": "#9ca3af"}
    figure, grid = plt.subplots(2, 3, figsize=(11, 7.2), sharex=True, sharey=True)
    for axes, (name, (title, habit)) in zip(grid.flat, TOWERS.items()):
        _panel(axes, title, habit, [row for row in found if row["name"] == name])
    for axes in grid[:, 0]:
        axes.set_ylabel("bytes beyond the weights", color=FAINT)
    for axes in grid[1]:
        axes.set_xlabel("side of a square picture, pixels", color=FAINT)
    _words(figure, grid[0, 0])
    figure.subplots_adjust(left=0.075, right=0.985, top=0.845, bottom=0.085, hspace=0.2, wspace=0.07)
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})


def _panel(axes: Any, title: str, habit: str, rows: list[dict[str, str]]) -> None:
    axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
    axes.set_title(habit, loc="right", fontsize=8, color=FAINT)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for attention, colour in COLOURS.items():
        own = [row for row in rows if row["attention"] == attention]
        sides = [int(row["width"]) for row in own]
        live, reserved = ([int(row[column]) / 2**20 for row in own] for column in ("live", "reserved"))
        axes.fill_between(sides, live, reserved, color=colour, alpha=0.22, linewidth=0)
        axes.plot(sides, live, color=colour, linewidth=1.6, marker="o", markersize=3.2)
        axes.plot(sides, reserved, color=colour, linewidth=0.8, alpha=0.8)
    _ticks(axes)


def _ticks(axes: Any) -> None:
    sides, sizes = (224, 448, 896, 1344, 2240), (16, 64, 256, 1024, 4096, 16384, 65536)
    axes.set_xticks(sides, [str(side) for side in sides])
    axes.set_yticks(sizes, [f"{size} MiB" if size < 1024 else f"{size >> 10} GiB" for size in sizes])
    axes.minorticks_off()
    axes.set_xlim(205, 2440)
    axes.set_ylim(6, 260_000)
    axes.grid(color="#e5e7eb", linewidth=0.7)
    axes.tick_params(colors=FAINT, length=0, labelsize=8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for size, text in ((24 * 1024, "24 GiB card"), (8 * 1024, "8 GiB card")):
        axes.axhline(size, color="#9ca3af", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
        axes.text(212, size * 1.12, text, fontsize=7, color=FAINT)


def _words(figure: Any, axes: Any) -> None:
    for attention, place in (("eager", (640, 1900)), ("sdpa", (1650, 120))):
        axes.text(*place, LABELS[attention], color=COLOURS[attention], fontsize=9, fontweight="bold", ha="right")
    figure.text(0.014, 0.955, "What one picture costs the card", fontsize=15, fontweight="bold")
    told = "Compute buffer of the vision tower in 16 bit. Line: tensors alive at once. "
    told += "Band: up to what torch's caching allocator takes from the card for them."
    figure.text(0.014, 0.92, told, fontsize=9, color=FAINT)
    honest = "predicted by dry runs, no card was used"
    figure.text(0.986, 0.958, honest, fontsize=9, color=FAINT, ha="right", style="italic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="from the CSV as it is")
    if not parser.parse_args().draw:
        write()
    draw()


if __name__ == "__main__":
    main()
