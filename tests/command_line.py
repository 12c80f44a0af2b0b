"""`mmswap ...` run in this process: what a shell would see of it."""

from __future__ import annotations

import sys

import pytest

from mmswap.cli import main


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `mmswap WORDS`."""
    monkeypatch.setattr(sys, "argv", ["mmswap", *words])
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    out, err = capsys.readouterr()
    return code, out, err
