"""Rows of figures in a CSV that grows: a new run adds, it never replaces."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path

from mmswap.errors import OptionError

COLUMNS = (
    "date",
    "model",
    "device",
    "torch",
    "transformers",
    "python",
    "threads",
    "what",
    "size",
    "unit",
    "p20",
    "p50",
    "p80",
    "GB/s",
    "copy GB/s",
    "share",
    "ratio",
    "overhead",
)


def check(path: Path) -> None:
    """Whether rows can be added; asked before anything is measured.

    Raises:
        OptionError: the file cannot be written, or is another table.
    """
    new = not path.exists()
    try:
        with path.open("a+", encoding="utf-8", newline="") as file:
            file.seek(0)
            first = next(csv.reader(file), None)
        if new:
            path.unlink()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise OptionError(f"{path} cannot be written: {why}.") from None
    if first is not None and first != list(COLUMNS):
        raise OptionError(f"{path} is a table with other columns: name another file.")


def append(rows: Iterable[Mapping[str, object]], path: Path) -> None:
    """Add the rows, with today's date; a file that is not there yet gets a first line of names.

    Raises:
        OptionError: the file cannot be written, or is another table.
    """
    check(path)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerows({"date": today, **row} for row in rows)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}.") from None
