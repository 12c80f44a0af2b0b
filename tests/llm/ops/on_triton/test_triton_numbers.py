"""Triton's kernels compute what the ops mean, at odd shapes, in every dtype and kind: interpreted, in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
OPS16 = ("w4a16", "expert_linear", "linear")
OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary", "kv_store", "decode_attention")
CHECKS = [
    *[f"{op}-{dtype}" for op in OPS16 for dtype in ("float16", "bfloat16")],
    *[f"{op}-{dtype}" for op in OPS for dtype in ("float16", "bfloat16", "float32")],
    *[f"assembly-{math}-{dtype}" for math in ("dot2", "ptx") for dtype in ("float16", "bfloat16")],
    *("groups", "scales-of-a-block", "matrix-units", "fp8-codes", "entry", "many-rows"),
]


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, object]]:
    """What `interpreted.py` says of each check."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "interpreted.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HERE)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line for line in lines}


def test_every_check_ran(told: dict[str, dict[str, object]]) -> None:
    assert sorted(told) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_kernels_compute_what_the_op_means(told: dict[str, dict[str, object]], check: str) -> None:
    assert told[check]["wrong"] is None
    assert told[check]["taken"], "every call was refused: nothing was tested"
