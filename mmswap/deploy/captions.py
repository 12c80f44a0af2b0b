"""A file of captions, one JSON object a line, that a job can go on with. Knows no model.

    captions = Captions.open(Path("captions.jsonl"), model="seer", prompt="Describe the picture.")
    for file in captions.missing(pictures(folder)): captions.add({"file": file, "caption": ...})

A line is `{"file", "caption", "finish_reason", "model", "prompt"}`, or has `error` in place of a caption where there is
no good picture. The order of lines means nothing. What was captioned is not looked at again; errors are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from mmswap.errors import OptionError

_ENDS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # some readers take them for ends of lines


def pictures(folder: Path) -> list[str]:
    """Every file below a folder but hidden ones, as paths relative to it with `/`, in their order.

    Raises:
        OptionError: there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise OptionError(f"There is no folder '{folder}': give the one that holds the pictures.")
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = Path(place).relative_to(folder)
        found += [(here / name).as_posix() for name in names if not name.startswith(".")]
    if not found:
        raise OptionError(f"There is no file in '{folder}'.")
    return sorted(found)


class Captions:
    """See the module. Lines are written as they come; half a line that a killed job left is dropped when it is opened.

    Attributes:
        done: files that have a caption. failed: files that were found to be no good pictures, and why.
    """

    def __init__(self, path: Path, made_by: Mapping[str, str], done: Iterable[str]) -> None:
        self.done = set(done)
        self.failed: dict[str, str] = {}
        self._made_by = dict(made_by)
        self._stream = path.open("a", encoding="utf-8", newline="\n")

    @classmethod
    def open(cls, path: Path, *, model: str, prompt: str) -> Captions:
        """Begin a file, or go on with it.

        Raises:
            OptionError: it cannot be written, or holds something else: captions of another model or prompt, or none.
        """
        made_by = {"model": model, "prompt": prompt}
        try:
            kept = _kept(path, made_by) if path.exists() else {}
            return cls(path, made_by, kept)
        except OSError as error:
            raise OptionError(f"--out {path}: it cannot be written ({error.strerror}).") from None

    def missing(self, files: Iterable[str]) -> list[str]:
        """Those of `files` that have no caption yet."""
        return [file for file in files if file not in self.done]

    def add(self, row: Mapping[str, Any]) -> bool:
        """Write a line; whether it is new: a worker that died may have told it twice."""
        file = row["file"]
        if file in self.done or file in self.failed:
            return False
        line = json.dumps({**row, **self._made_by}, ensure_ascii=False)
        self._stream.write(line.translate(_ENDS) + "\n")
        self._stream.flush()
        if "error" in row:
            self.failed[file] = str(row["error"])
        else:
            self.done.add(file)
        return True

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Captions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kept(path: Path, made_by: Mapping[str, str]) -> dict[str, str]:
    """Files of the lines that stay; the file is written anew, at once or not at all, if some do not."""
    kept: dict[str, str] = {}
    text = path.read_bytes().decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]  # other ends of lines may stand within a caption
    lines[-1] = lines[-1][:-1]
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        row = _row(line)
        if row is None:
            if number == len(lines) and not line.endswith("\n"):  # it was cut off while it was written
                continue
            raise OptionError(f"--out {path}: line {number} is no caption: give the name of a new file.")
        for name, value in made_by.items():
            if row.get(name) != value:
                raise OptionError(
                    f"--out {path} holds captions of another {name} ({str(row.get(name))[:60]!r}): give another file."
                )
        if "error" not in row and line.endswith("\n"):
            kept[row["file"]] = line
    if text != "".join(kept.values()):
        fresh = path.with_name(path.name + ".new")
        fresh.write_text("".join(kept.values()), encoding="utf-8", newline="\n")
        os.replace(fresh, path)
    return kept


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    good = isinstance(row, dict) and isinstance(row.get("file"), str) and ("caption" in row or "error" in row)
    return row if good else None
