"""The table of docs/kernels.md, from `isa.csv`.

python benchmarks/isa_table.py       # what stands between <!-- isa:begin --> and <!-- isa:end -->
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from peak_table import between_markers

CSV = Path(__file__).with_name("isa.csv")
PAGE = Path(__file__).parents[1] / "docs" / "kernels.md"
SHOWN = ("gfx1100", "gfx1201", "sm_80", "sm_90")
Row = dict[str, str]


def table(rows: Iterable[Row]) -> str:
    """A line for each kernel and case, a column for each card of `SHOWN`: registers, then the loop."""
    found = {(row["case"], row["kernel"], row["target"]): row for row in rows if ", choice" not in row["case"]}
    lines = [f"| case | {' | '.join(SHOWN)} |", f"|---{'|---' * len(SHOWN)}|"]
    for case, kernel in [key[:2] for key in found if key[2] == SHOWN[0]]:
        title = f"{case}, joining" if kernel == "join_splits" else case
        other = "w4_dot" if kernel == "w4_small" else "w4_small"  # some cards take the matrix units for fewer rows
        cells = [_cell(found.get((case, kernel, card)) or found[case, other, card], kernel) for card in SHOWN]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row, kernel: str) -> str:
    loop = f", {row['per_weight']} a weight" if row["per_weight"] else ""
    loop = loop or (f", {row['instructions']} in the loop" if int(row["instructions"]) else "")
    return f"{row['registers']}{loop}{'' if row['kernel'] == kernel else ' (' + row['kernel'] + ')'}"


def main() -> None:
    with CSV.open(encoding="utf-8", newline="") as file:
        content = table(csv.DictReader(file))
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "isa", content), encoding="utf-8")


if __name__ == "__main__":
    main()
