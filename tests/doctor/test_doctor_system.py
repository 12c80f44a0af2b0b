"""The system's lines: a broken torch, old packages, variables that do nothing, and names that must not be told."""

from __future__ import annotations

import platform
import struct
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
import torch
from fake_machine import Machine

from mmswap.doctor import system


def test_a_torch_that_cannot_be_imported_is_broken_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    check = system.torch_build()
    assert check.state == "broken"
    assert torch.__version__.split("+")[0] in check.value
    assert "ModuleNotFoundError" in check.reason


def test_no_torch_at_all_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(system, "_version", lambda name: None)
    assert system.torch_build().value == "not installed"


@pytest.mark.parametrize(
    ("hip", "cuda", "build", "words"),
    [("7.2.1", None, "hip", "HIP 7.2.1"), (None, "13.0", "cuda", "CUDA 13.0"), (None, None, "cpu", "processor alone")],
)
def test_what_torch_was_built_for(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, cuda: str | None, build: str, words: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx1100"])
    check = system.torch_build()
    assert (check.state, check.facts["build"], check.facts["architectures"]) == ("ok", build, ["gfx1100"])
    assert words in check.value


def test_a_torch_without_distributed_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.distributed().facts["there"] is torch.distributed.is_available()
    monkeypatch.delattr(torch, "distributed")
    check = system.distributed()
    assert (check.state, check.facts["there"]) == ("ok", False)
    assert "not needed" in check.value


@pytest.mark.parametrize(
    ("version", "state"),
    [("5.24", "ok"), ("5.30.1", "ok"), ("10.0", "ok"), ("5.23", "broken"), ("4.57.3", "broken"), (None, "broken")],
)
def test_the_package_at_fault_is_named(monkeypatch: pytest.MonkeyPatch, version: str | None, state: str) -> None:
    monkeypatch.setattr(system, "_version", lambda name: version if name == "transformers" else "99")
    found = {check.name: check for check in system.packages()}
    assert found["transformers"].state == state
    assert found["safetensors"].state == "ok"
    if state == "broken":
        assert "transformers 5.24 or newer" in found["transformers"].reason
        assert found["transformers"].advice.startswith("pip install")


@pytest.mark.parametrize(("package", "module"), [("safetensors", "safetensors"), ("pillow", "PIL")])
def test_a_package_that_cannot_be_imported_is_broken(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str
) -> None:
    assert all(check.state == "ok" for check in system.packages())
    monkeypatch.setitem(sys.modules, module, None)
    found = {check.name: check for check in system.packages()}
    assert [name for name, check in found.items() if check.state == "broken"] == [package]
    assert module in found[package].reason


def test_a_transformers_that_another_version_broke_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Failed to import transformers.configuration_utils because of tokenizers")

    monkeypatch.setitem(sys.modules, "transformers", Broken("transformers"))
    found = {check.name: check for check in system.packages()}
    assert found["transformers"].state == "broken"
    assert "because of tokenizers" in found["transformers"].reason


def test_linux_tells_the_versions_of_its_drivers(linux: Machine) -> None:
    assert system.driver(linux.here).facts == {}
    linux.file("/sys/module/amdgpu/version", "6.16.6\n")
    linux.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX 580.1  Fri\nGCC version: 12\n")
    check = system.driver(linux.here)
    assert dict(check.facts) == {"amdgpu": "6.16.6", "NVIDIA": "NVIDIA UNIX 580.1  Fri"}


def test_what_is_required_is_read_from_the_metadata_without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.6", "numpy>=1.26", 'pytest>=8; extra == "test"', "odd"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert system.required() == [("torch", "2.6"), ("numpy", "1.26")]


def test_an_old_or_narrow_python_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system.python().state == "ok"
    monkeypatch.setattr(struct, "calcsize", lambda code: 4)
    assert (system.python().state, system.python().facts["bits"]) == ("broken", 32)


def test_the_host_has_no_name(monkeypatch: pytest.MonkeyPatch, linux: Machine) -> None:
    real = platform.uname()
    fake = real._replace(node="wilhelmines-tower")
    monkeypatch.setattr(platform, "uname", lambda: fake)
    check = system.operating_system(linux.here)
    assert check.state == "ok"
    assert "wilhelmine" not in str(check)
    assert real.release in check.value


def test_wsl_is_a_note(monkeypatch: pytest.MonkeyPatch, linux: Machine) -> None:
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert system.operating_system(linux.here).state == "note"


def test_only_variables_that_matter_are_told(linux: Machine) -> None:
    linux.environ |= {
        "HIP_VISIBLE_DEVICES": "1",
        "PASSWORD": "secret",
        "MMSWAP_WDDM_BUDGET": "strict",
        "PIP_INDEX_URL": "x",
    }
    (check,) = system.variables(linux.here)
    assert dict(check.facts) == {"HIP_VISIBLE_DEVICES": "1", "MMSWAP_WDDM_BUDGET": "strict"}
    assert "secret" not in check.value


def test_the_well_known_override_does_nothing_on_windows_and_that_is_said(windows: Machine, linux: Machine) -> None:
    for machine in (windows, linux):
        machine.environ["HSA_OVERRIDE_GFX_VERSION"] = "11.0.0"
    assert [check.name for check in system.variables(linux.here)] == ["variables"]
    note = system.variables(windows.here)[1]
    assert (note.name, note.state) == ("HSA_OVERRIDE_GFX_VERSION", "note")


def test_a_processor_is_told_with_its_cores() -> None:
    facts: dict[str, Any] = dict(system.processor().facts)
    assert facts["cores"] >= facts["usable_cores"] >= 1
