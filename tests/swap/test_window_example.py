"""`examples/window_on_any_module.py` runs, evicts, and changes no result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "window_on_any_module.py"


@pytest.mark.parametrize(
    ("card", "words"),
    [("sim:24MiB@2GB/s", "evicted: layer 3"), ("sim:1GiB", "evicted: nothing"), ("cpu", "nothing can be lent there")],
)
def test_the_example_runs(card: str, words: str) -> None:
    command = [sys.executable, str(EXAMPLE), "--card", card]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "spilled 0 bytes" in done.stdout
    assert "the layers compute the same: True" in done.stdout
