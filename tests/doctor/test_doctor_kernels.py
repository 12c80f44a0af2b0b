"""Triton that is missing, raises, dies or works; amdsmi that is broken; native kernels that are not built."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.host import HostCard
from mmswap.card.outside import Outside
from mmswap.doctor import kernels, triton_trial
from mmswap.doctor.patient import Patient
from mmswap.hip_ext import supply
from mmswap.hip_ext.library import Missing

HERE = Path(__file__).parent  # not the root: `-c` would put ./mmswap before the installed package


def with_card(machine: Machine) -> Patient:
    found = Patient(machine.here, "auto")
    found.take(AcceleratorCard(FakeCuda(), 0, outside=Outside()))
    return found


def package(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "Program Files" / "site 用户"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_no_triton_is_a_note_with_a_card_and_nothing_without_one(
    linux: Machine, windows: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_there", lambda name: False)
    assert kernels.triton(Patient(linux.here, "cpu", card=HostCard())).state == "ok"
    assert kernels.triton(with_card(linux)).state == "note"
    assert "pip install triton " in kernels.triton(with_card(linux)).advice
    assert "pip install triton-windows " in kernels.triton(with_card(windows)).advice


def test_a_triton_that_works_tells_its_version(linux: Machine, site: Path) -> None:
    package(site, "triton", "__version__ = '3.7.0-fake'")
    check = kernels.triton(with_card(linux))
    assert (check.state, check.value) == ("ok", "3.7.0-fake")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ImportError('DLL load failed while importing libtriton')", "ImportError: DLL load failed"),
        ("import os; os._exit(139)", "code 139"),
        ("raise SystemExit(3)", "code 3"),
    ],
)
def test_a_triton_that_raises_or_dies_is_a_line_with_its_reason(
    linux: Machine, site: Path, text: str, reason: str
) -> None:
    package(site, "triton", text)
    check = kernels.triton(with_card(linux))
    assert (check.state, check.value) == ("note", "cannot be imported")
    assert reason in check.reason
    assert "reinstall" in check.advice


def test_a_triton_that_never_returns_is_given_up(linux: Machine, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "IMPORT_LIMIT", 1.0)
    package(site, "triton", "import time; time.sleep(600)")
    assert "1 s" in kernels.triton(with_card(linux)).reason


def test_a_broken_amdsmi_is_a_line_and_nothing_more(site: Path) -> None:
    assert kernels.amdsmi().value == "not installed, and not needed"
    (site / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')", encoding="utf-8")
    check = kernels.amdsmi()
    assert check.state == "ok"
    assert "libamd_smi.so" in check.reason


def test_a_kernel_that_does_not_compile_is_a_note(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: object) -> None:
        raise RuntimeError("failed to compile: no such target gfx1030")

    monkeypatch.setattr(triton_trial, "trial", fail)
    check = kernels.triton_kernel(with_card(linux))
    assert (check.state, check.value) == ("note", "does not compile")
    assert "gfx1030" in check.reason
    monkeypatch.setattr(triton_trial, "trial", lambda device: None)
    assert kernels.triton_kernel(with_card(linux)).state == "ok"


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no triton here")
def test_the_kernel_that_is_tried_is_right_in_tritons_interpreter() -> None:
    code = "import torch; from mmswap.doctor.triton_trial import trial; trial(torch.device('cpu'))"
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, env=env, check=False).returncode == 0


def test_native_kernels_are_named_with_their_library_or_the_reason(
    linux: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "kernels", lambda device: Missing("no native kernels are built for gfx1030", "build"))
    check = kernels.hip_ext(with_card(linux))
    assert (check.value, check.reason, check.advice) == ("none", "no native kernels are built for gfx1030", "build")
    monkeypatch.setattr(supply, "kernels", lambda device: SimpleNamespace(origin="gfx1030-1.so"))
    assert kernels.hip_ext(with_card(linux)).value == "gfx1030-1.so"
    assert kernels.hip_ext(Patient(linux.here, "cpu")).value == "not used"
