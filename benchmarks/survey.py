"""Which architectures of transformers does mmswap understand? Each is built small, on meta, and asked for a picture.

    python benchmarks/survey.py                # all, into survey.csv and the table of docs/architectures.md
    python benchmarks/survey.py --only llava   # one, printed, nothing written

Each architecture runs in a process of its own: one that crashes or hangs costs one row. No card, weights or network.
"""

from __future__ import annotations

import argparse
import csv
import logging
import multiprocessing
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from survey_configs import config_of
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as ARCHITECTURES

from mmswap.blueprint import Blueprint
from mmswap.swap.dry_run import DryRun
from mmswap.swap.replay import TORCH
from mmswap.units import MIB
from mmswap.vision.tower import Call, find_tower

HERE = Path(__file__).parent
CSV = HERE / "survey.csv"
PAGE = HERE.parent / "docs" / "architectures.md"
BEGIN, END = "<!-- survey: begin -->", "<!-- survey: end -->"
WIDTH, HEIGHT = 448, 336
SECONDS = 120
MOST = 64 << 30

# Where the error alone would not tell a reader what is the matter.
REASONS = {
    "evolla": "takes proteins, not pictures; transformers lists it, and cannot build it by the auto class",
    "fast_vlm": "its tower is one of timm's, and timm is not installed",
    "fuyu": "has no vision tower: one linear layer takes the raw patches of a picture",
    "gemma3n": "its tower is one of timm's, and timm is not installed",
    "instructblipvideo": "takes videos only: its processor makes frames, and its forward asks for video features",
    "mistral4": "has no vision tower: transformers lists a model of text alone",
    "perception_lm": "its tower is one of timm's, and timm is not installed",
    "pi0": "is a robot's policy: it wants the robot's state, answers with actions and has no output head",
    "udop": "has no vision tower: patches enter one encoder with the words, which OCR (pytesseract) must have read",
}


@dataclass(slots=True)
class Row:
    """What was found of one architecture; empty fields were not reached. Bytes and pixels."""

    architecture: str
    model: str
    tower: str = ""
    decoder: str = ""
    layers: int = 0
    width: int = WIDTH
    height: int = HEIGHT
    patches: int = 0
    tokens: int = 0
    live: int = 0
    features: int = 0
    traced: bool = False
    why: str = ""


def run_tower(model: Any, call: Call) -> Any:
    return find_tower(model).run(call)


def examine(architecture: str) -> Row:
    """The row of one architecture; never raises."""
    row = Row(architecture, ARCHITECTURES[architecture])
    try:
        _examine(row)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        row.why = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
    if not row.traced:
        row.why = REASONS.get(architecture, row.why)
    return row


def _examine(row: Row) -> None:
    blueprint = Blueprint(row.architecture, config_of(row.architecture), dtype=torch.bfloat16)
    try:
        parts = blueprint.parts
        row.decoder, row.layers = parts.decoder_name, len(parts.layers)
    except Exception as error:
        row.why = f"decoder: {error}"
    row.tower = ", ".join(name for name, _ in blueprint.tower.modules)
    picture = blueprint.picture(WIDTH, HEIGHT)
    row.patches, row.tokens = picture.patches, picture.tokens
    peak = DryRun(blueprint.model, policy=TORCH).tower_peak(run_tower, picture.call)
    row.live, row.features = peak.live, peak.output
    row.traced = peak.how == "trace" and 0 < peak.output <= peak.live < MOST and bool(row.layers)
    if not row.traced and not row.why:
        row.why = peak.how if peak.how != "trace" else f"the figures make no sense: {peak.live} bytes"


def _apart(architecture: str) -> Row:
    """`examine` in a process of its own, within a time limit."""
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, architecture))
    process.start()
    theirs.close()
    row = Row(architecture, ARCHITECTURES[architecture], why=f"took more than {SECONDS} s")
    try:
        if ours.poll(SECONDS):
            row = ours.recv()
    except EOFError:
        row.why = "the process crashed"
    process.kill()
    process.join()
    return row


def _send(pipe: Any, architecture: str) -> None:
    pipe.send(examine(architecture))


def write_csv(rows: Iterable[Row]) -> None:
    with CSV.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows([getattr(row, field.name) for field in fields(Row)] for row in rows)


def read_csv() -> list[dict[str, str]]:
    with CSV.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """The part of docs/architectures.md that the CSV decides."""
    traced = sum(row["traced"] == "True" for row in rows)
    lines = [
        f"{traced} of {len(rows)} architectures are traced (transformers {transformers.__version__}).",
        "",
        f"| architecture | tower and projector | decoder | patches, tokens of {WIDTH}x{HEIGHT} | live peak | traced |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        tower = ", ".join(f"`{name}`" for name in row["tower"].split(", ") if name) or "-"
        decoder = f"`{row['decoder'] or '(the model)'}`" if row["layers"] != "0" else "-"
        seen = row["traced"] == "True"
        counts = f"{row['patches']}, {row['tokens']}" if seen else "-"
        peak = f"{int(row['live']) / MIB:.2f} MiB" if seen else "-"
        lines.append(
            f"| {row['architecture']} | {tower} | {decoder} | {counts} | {peak} | {'yes' if seen else row['why']} |"
        )
    return "\n".join(lines)


def write_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(read_csv())}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ARCHITECTURES, metavar="NAME", help="only these; writes nothing")
    chosen = parser.parse_args()
    quiet()
    rows = []
    for architecture in chosen.only or ARCHITECTURES:
        rows.append(_apart(architecture))
        print(*(getattr(rows[-1], field.name) for field in fields(Row)), sep=" | ", flush=True)
    if not chosen.only:
        write_csv(rows)
        write_page()


def quiet() -> None:
    """Libraries keep their warnings about strange configs to themselves."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
