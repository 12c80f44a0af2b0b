"""Kernels are started without the JIT's work, and tuned at load alone: on a pretended card, up to the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mmswap.llm.ops import triton
from mmswap.llm.ops.triton import arch
from mmswap.llm.ops.triton.arch import Card

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@needs_triton
def test_starting_and_tuning(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "MMSWAP_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "started.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HERE)
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(told) == 8
    assert [one for one in told if one["wrong"] is not None] == []


def test_importing_the_backend_imports_no_triton() -> None:
    code = "import sys, mmswap.llm.ops.triton as t; t.IMPLEMENTATIONS; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0


def test_a_missing_triton_is_told_and_nothing_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(arch, "WINDOWS", False)
    assert triton.available(torch.device("cuda")) == "the package triton is not installed"
    monkeypatch.setattr(arch, "WINDOWS", True)
    assert triton.available(torch.device("cuda")) == "the package triton-windows is not installed"


@needs_triton
def test_it_does_not_compute_where_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton.available(torch.device("cpu")) == "it computes on cards, not on cpu"
    if not torch.cuda.is_available():
        assert str(triton.available(torch.device("cuda"))).startswith("triton finds no card (")


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (Card("hip", "gfx1030", 32), "triton does not compile for gfx1030"),
        (Card("hip", "gfx906", 64), "triton does not compile for gfx906"),
        (Card("hip", "gfx1100", 32), None),
        (Card("hip", "gfx1151", 32), None),
        (Card("hip", "gfx1201", 32), None),
        (Card("hip", "gfx942", 64), None),
        (Card("cuda", "75", 32), "sm_75 is older than sm_80"),
        (Card("cuda", "120", 32), None),
    ],
)
def test_old_cards_are_left_to_others(card: Card, reason: str | None) -> None:
    assert arch.unfit(card) == reason


@pytest.mark.parametrize(
    ("card", "math"),
    [
        (Card("hip", "gfx1100", 32), "dot2"),
        (Card("hip", "gfx1201", 32), "dot2"),
        (Card("hip", "gfx942", 64), "plain"),
        (Card("cuda", "80", 32), "ptx"),
        (Card("interpreter", "interpreter", 32), "plain"),
    ],
)
def test_products_are_those_that_the_card_has(card: Card, math: str) -> None:
    assert arch.pairs_math(card, torch.float16) == f"{math}_f16"
    assert arch.pairs_math(card, torch.bfloat16) == f"{math}_bf16"
