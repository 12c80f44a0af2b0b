"""Every script at the top of examples/ runs from a plain command line and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = {
    "ask_about_a_picture.py": (["--card", "sim:1GiB"], "Nothing is evicted because"),
    "window_on_any_module.py": ([], "evict"),
    "four_bits_and_two_turns.py": (["--kv", "int8"], "70 tokens, 55 of them kept"),
}


def test_every_script_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)


def test_no_script_hides_a_package_that_a_library_looks_for() -> None:
    """A script's folder comes first on the path; benchmarks/kernels.py was taken for the package by transformers."""
    scripts = [path.stem for folder in ("examples", "benchmarks") for path in (EXAMPLES.parent / folder).glob("*.py")]
    assert not {"kernels", "accelerate", "gguf", "flash_attn", "statistics"} & set(scripts)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_runs(name: str) -> None:
    words, says = SCRIPTS[name]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
