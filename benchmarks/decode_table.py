"""The table of docs/decoding.md: the latest rows of `decode.csv` for each model and number of threads.

python benchmarks/decode_table.py       # writes what stands between <!-- decode:begin --> and <!-- decode:end -->
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from peak_table import between_markers

CSV = Path(__file__).with_name("decode.csv")
PAGE = Path(__file__).parents[1] / "docs" / "decoding.md"
Row = dict[str, str]


def table(rows: Iterable[Row]) -> str:
    """A line for each side of each comparison; a later run of the same one takes the place of the earlier."""
    latest = {(row["model"], row["threads"], row["what"]): row for row in rows}
    lines = [
        "| model | side | tok/s (p20, p50, p80) | GB/s | of copy | ratio | outside of ops |",
        "|---|---|---|---|---|---|---|",
    ]
    for (model, threads, what), row in latest.items():
        side = what.removeprefix("decode, ")
        rates = ", ".join(row[name] for name in ("p20", "p50", "p80"))
        outside = f"{float(row['overhead']):.1%}" if row["overhead"] else ""
        named = f"{model}, {threads} thread{'' if threads == '1' else 's'}"
        share = f"{float(row['share']):.0%}"
        lines.append(
            f"| {named} | {side} | {rates} | {row['GB/s']} | {share} | {float(row['ratio']):.2f}x | {outside} |"
        )
    device = "; ".join(dict.fromkeys(f"{row['device']}, torch {row['torch']}" for row in latest.values()))
    return "\n".join(
        [*lines, "", f"{device}. Other work was running on the machine, so only the ratios are worth much."]
    )


def main() -> None:
    with CSV.open(encoding="utf-8", newline="") as file:
        content = table(csv.DictReader(file))
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "decode", content), encoding="utf-8")


if __name__ == "__main__":
    main()
