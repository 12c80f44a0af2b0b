"""What others raise becomes words of a sentence: never the name of a class, never a line too many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmswap.errors import told

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "mmswap" / "doctor" / "check.py"  # for bug reports: there the kind of an error is what one wants to know


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("aspect ratio must be below 200.\nDetails follow"), "aspect ratio must be below 200"),
        (RuntimeError("\n  no such thing!.\n"), "no such thing"),
        (KeyError("text_config"), "'text_config' is missing"),
        (KeyError("7 patches are not among them."), "7 patches are not among them"),
        (MemoryError(), "memory error"),
        (NotImplementedError(" "), "not implemented error"),
        (OSError(2, "No such file or directory", "a.bin"), "No such file or directory: a.bin"),
        (OSError("it is no file"), "it is no file"),
        (ValueError("x" * 900), "x" * 200),
    ],
)
def test_an_error_is_told_in_its_own_words(error: Exception, words: str) -> None:
    assert told(error) == words


def test_no_sentence_holds_the_name_of_an_exceptions_class() -> None:
    """`cannot be shown a picture of 9000x10: ValueError: absolute aspect ratio ...` was one."""
    raw = re.compile(r"type\((error|failure|cause|exc|e)\)\.__name__|\{(error|exc|e)!r\}")
    folders = ("mmswap/card", "mmswap/cli", "mmswap/doctor", "mmswap/sizing", "mmswap/swap", "vision")
    files = [file for folder in folders for file in (ROOT / folder).glob("*.py")] + list((ROOT / "mmswap").glob("*.py"))
    assert len(files) > 100
    owners = {ROOT / "mmswap" / "errors.py", PAGE, ROOT / "mmswap" / "foresight.py"}  # the last: a log for developers
    assert [str(file) for file in files if file not in owners and raw.search(file.read_text(encoding="utf-8"))] == []
