"""The tables of docs/peaks.md, from `peaks.csv` and the shipped profiles.

    python benchmarks/peak_table.py       # what stands between <!-- peaks:begin --> and <!-- peaks:end -->, and so on

`peaks`: median and worst error of the predicted peak for each tower. An error is predicted / true - 1, kernels' scratch
included: above zero is too much, below is too little. `shipped`: what each shipped profile says for one picture.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import mmswap.profiles as profiles

CSV = Path(__file__).with_name("peaks.csv")
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "peaks.md"
KINDS = {
    "shipped": "shipped checkpoints at their real widths, 2 or 3 blocks",
    "family": "small towers of the tests' families",
    "held out": "small towers of families that were held out",
}
Row = dict[str, str]


def errors(rows: Iterable[Row]) -> str:
    """A line for each tower, and one in bold above those of its kind."""
    lines = ["| tower | cases | tensors byte-exact | median error | worst error |", "|---|---|---|---|---|"]
    given = list(rows)
    for kind, title in KINDS.items():
        chosen = [row for row in given if row["kind"] == kind]
        if chosen:
            lines += [_line(f"**{title}**", chosen), *_lines(chosen)]
    return "\n".join(lines)


def _lines(rows: list[Row]) -> Iterator[str]:
    for name in dict.fromkeys(row["family"] for row in rows):
        yield _line(name, [row for row in rows if row["family"] == name])


def _line(title: str, rows: list[Row]) -> str:
    strayed = [int(row["with_scratch"]) / int(row["true_peak"]) - 1 for row in rows]
    exact = sum(row["live"] == row["true_live"] for row in rows)
    worst = max(strayed, key=abs)
    return f"| {title} | {len(rows)} | {exact} | {_percent(median(strayed))} | {_percent(worst)} |"


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{100 * share:+.4f} %" if abs(share) < 0.001 else f"{100 * share:+.1f} %"


def shipped(names: Iterable[str]) -> str:
    """A line for each shipped profile: its largest single picture, sizes in MiB."""
    lines = ["| profile | picture | patches | live | reserved | ratio | least free | expandable segments |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    return "\n".join([*lines, *(_sample(profiles.read(name)) for name in names)])


def _sample(profile: dict[str, Any]) -> str:
    sample = [sample for sample in profile["samples"] if sample["images"] == 1][-1]
    sizes = [f"{sample[name] / 2**20:.0f}" for name in ("live", "reserved", "least_free", "expandable")]
    sizes.insert(2, f"{sample['reserved'] / sample['live']:.2f}")
    picture = f"{sample['width']} x {sample['height']}"
    return f"| {profile['name']} | {picture} | {sample['patches']} | {' | '.join(sizes)} |"


def between_markers(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of that name.

    Raises:
        ValueError: it has none.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{PAGE} has no {begin} and {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    with CSV.open(newline="") as file:
        tables = {"peaks": errors(csv.DictReader(file)), "shipped": shipped(profiles.names())}
    text = PAGE.read_text(encoding="utf-8")
    for name, content in tables.items():
        text = between_markers(text, name, content)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
