"""Predicted peaks against the truth read from malloc, for every family, three sizes, both attentions, two dtypes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from families import FAMILIES

HERE = Path(__file__).parent
WIDTH = 96  # wide enough for oneDNN to take its large kernels, small enough for 228 towers a minute

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="the malloc hook needs Linux and gcc"
)


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    sys.path.insert(0, str(HERE / "truth"))
    try:
        from malloc_hook import environment
    finally:
        sys.path.pop(0)
    paths = [str(HERE / "truth"), str(HERE.parent)]
    return environment(tmp_path_factory.mktemp("hook")) | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_peaks_are_never_under_and_at_most_two_percent_over(hooked: dict[str, str], dtype: str, attention: str) -> None:
    case = {"families": FAMILIES, "dtypes": [dtype], "attentions": [attention], "sizes": [1, 2, 3], "width": WIDTH}
    command = [sys.executable, str(HERE / "truth" / "run.py"), json.dumps(case)]
    done = subprocess.run(command, env=hooked, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3 * len(FAMILIES)
    wrong = [row for row in rows if row["live"] != row["true_live"]]
    assert not wrong, f"lifetimes are not byte-exact: {wrong[:3]}"
    wrong = [row for row in rows if not row["true_peak"] <= row["with_scratch"] <= 1.02 * row["true_peak"]]
    assert not wrong, f"peaks are off: {wrong[:3]}"
    assert all(row["output"] == row["true_output"] for row in rows)
    assert all(row["how"] == "trace" for row in rows)
