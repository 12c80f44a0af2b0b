"""The table of docs/serving.md: the latest rows of `serve.csv` for each model, number of answers at a time, and load.

python benchmarks/serve_table.py       # writes what stands between <!-- serve:begin --> and <!-- serve:end -->
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from peak_table import between_markers

CSV = Path(__file__).with_name("serve.csv")
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
Row = dict[str, str]


def table(rows: Iterable[Row]) -> str:
    """A line for each load; a later run of the same one takes the place of the earlier."""
    latest = {tuple(row[key] for key in ("model", "what", "pictures", "clients", "parallel")): row for row in rows}
    lines = [
        "| load | parallel | requests/s | CPU, ms | tokens/s | first, ms (p50, p99) | gap, ms (p50, p99) | encode |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (model, what, pictures, clients, parallel), row in sorted(latest.items(), key=_order):
        named = what if what != "load" else f"{clients} client{'s' if clients != '1' else ''}"
        named += ", pictures" if pictures == "1" else ""
        first, gap = (f"{row[f'{name}_p50_ms']}, {row[f'{name}_p99_ms']}" for name in ("first", "gap"))
        rates = f"{row['requests_s']} | {row['cpu_ms']} | {row['tokens_s']}"
        lines.append(f"| {model}: {named} | {parallel} | {rates} | {first} | {gap} | {row['encode_ms']} |")
    devices = "; ".join(dict.fromkeys(f"{row['device']}, torch {row['torch']}" for row in latest.values()))
    note = "Server and clients share the machine, on which other work was running: the times differ by a factor of two"
    more = "from run to run. `CPU` is the processor's time that the server took for a request, which varies less."
    return "\n".join([*lines, "", f"{devices}. {note}", more])


def _order(item: tuple[tuple[str, ...], Row]) -> tuple[object, ...]:
    model, what, pictures, clients, parallel = item[0]
    return model, what != "load", pictures, int(clients), int(parallel)


def main() -> None:
    with CSV.open(encoding="utf-8", newline="") as file:
        content = table(csv.DictReader(file))
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "serve", content), encoding="utf-8")


if __name__ == "__main__":
    main()
