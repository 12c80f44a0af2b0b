"""benchmarks/native_kernels.py runs without a card, says where, and tells wrong results."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stand_in import Both

from mmswap.hip_ext import supply
from mmswap.hip_ext.backend import IMPLEMENTATIONS
from mmswap.llm.ops import backends, use

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, in a hurry."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "native_kernels", raising=False)
    import native_cases
    import native_kernels as script

    monkeypatch.setattr(native_cases, "SLOTS", 128)
    monkeypatch.setattr(native_cases, "HELD", 100)
    monkeypatch.setattr(script, "copy_rate", lambda device: SimpleNamespace(p50=1e10))
    monkeypatch.setattr(script, "SECONDS", 0.0)
    monkeypatch.setattr(script, "COLD", {"cpu": 1})
    monkeypatch.setattr(backends, "_availability", {})
    use("auto")
    return script


def measured(kernels: Any, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[int, list[dict[str, str]]]:
    out = folder / "rows.csv"
    words = [
        "native_kernels.py",
        "--device",
        "cpu",
        "--dtypes",
        "float16",
        "--backends",
        "hip",
        "reference",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", words)
    status = kernels.main()
    with out.open(encoding="utf-8", newline="") as file:
        return status, list(csv.DictReader(file))


def test_every_row_has_its_place_its_rate_and_its_versions(
    both: Both, kernels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(supply._held, CPU, both.launchers)
    status, rows = measured(kernels, monkeypatch, tmp_path)
    assert status == 0
    assert {row["op"] for row in rows if row["backend"] == "hip"} == set(IMPLEMENTATIONS) - {
        "gelu_and_mul",
        "gptq_shuffle",
    }
    assert {row["torch"] for row in rows} == {torch.__version__}
    assert all(float(row["gbs"]) >= 0 and float(row["p50_us"]) > 0 for row in rows)
    assert all(float(row["off"]) < 1e-2 for row in rows)
    assert torch.__version__ in capsys.readouterr().out


def test_a_wrong_result_is_told_and_ends_with_one(
    both: Both, kernels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(supply._held, CPU, both.launchers)
    both.opened.stand_in_dry(1)  # nothing runs: what lies in memory is the result
    try:
        status, _ = measured(kernels, monkeypatch, tmp_path)
    finally:
        both.opened.stand_in_dry(0)
        both.told()
    assert status == 1
    assert "WRONG" in capsys.readouterr().out


def test_a_backend_that_is_not_there_is_said(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, rows = measured(kernels, monkeypatch, tmp_path)
    assert status == 0
    assert {row["backend"] for row in rows} == {"reference", "plain torch"}
    assert "hip is not there: it computes on cards, not on cpu" in capsys.readouterr().out
