"""The whole page on machines that are not there: each planted fault changes its line and ends nothing."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.backend import Properties
from mmswap.card.host import HostCard
from mmswap.card.simulated import SimulatedCard
from mmswap.doctor import attention, devices, examination, host, kernels, memory, system
from mmswap.doctor.attention import Shape
from mmswap.doctor.check import Check
from mmswap.doctor.examination import examine
from mmswap.doctor.patient import Patient
from mmswap.errors import OptionError

SECTIONS = ["system", "devices", "memory", "attention", "ops", "kernels", "toolchain", "host", "model"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL", "LARGE", "LARGE_ON_HOST"):
        monkeypatch.setattr(attention, name, Shape(name.lower(), 2, 16, 8))
    monkeypatch.setattr(host, "COPIED", 1 << 20)
    monkeypatch.setattr(kernels, "_there", lambda name: False)  # what is installed here is not on those machines


def page(patient: Patient, **options: Any) -> dict[str, dict[str, Check]]:
    found: dict[str, dict[str, Check]] = {}
    for section, check in examine(patient, **options):
        assert check.name not in found.setdefault(section, {})
        found[section][check.name] = check
    return found


def broken(found: dict[str, dict[str, Check]]) -> list[str]:
    return [name for checks in found.values() for name, check in checks.items() if check.state == "broken"]


def card(windows: bool = False) -> FakeCuda:
    fake = FakeCuda(total=1 << 30, hip=True, windows=windows)
    fake.devices = [Properties("AMD Radeon RX 7900 XT", 1 << 30, False, "gfx1100")]
    fake.architectures = ("gfx1100",)
    return fake


def test_a_machine_without_a_card_has_every_section_and_nothing_broken(linux: Machine) -> None:
    found = page(Patient(linux.here, "cpu"))
    assert list(found) == SECTIONS
    assert broken(found) == []
    assert found["devices"]["card"].facts["spec"] == "cpu"


def test_a_machine_with_a_card_tells_all_of_it(linux: Machine) -> None:
    found = page(Patient(linux.here, "auto", card()))
    assert broken(found) == []
    assert {"cuda:0", "card", devices.KERNEL} <= set(found["devices"])
    assert {"driver", "own account", "free", "WDDM budget", "spill", "pinned memory"} <= set(found["memory"])
    assert found["toolchain"]["HIP architecture"].facts["value"] == "gfx1100"
    assert found["toolchain"]["HIP SDK"].state == "note"
    assert found["kernels"]["triton"].state == "note"
    assert found["attention"]["attention"].reason.startswith(attention.AOTRITON)


def test_a_windows_machine_is_asked_for_msvc(windows: Machine) -> None:
    found = page(Patient(windows.here, "cpu"))
    assert "MSVC" in found["toolchain"]
    assert "C++ compiler" not in found["toolchain"]


def test_device_kernel_image_is_invalid(linux: Machine) -> None:
    fake = card()
    fake.broken[0] = RuntimeError("HIP error: device kernel image is invalid")
    found = page(Patient(linux.here, "auto", fake))
    assert list(found) == SECTIONS
    assert broken(found) == ["card"]
    assert "gfx1100" in found["devices"]["cuda:0"].reason
    assert "ROCm wheel" in found["devices"]["cuda:0"].reason
    asked = page(Patient(linux.here, "cuda:0", fake))
    assert broken(asked) == ["card"]
    assert "gfx1100" in asked["devices"]["card"].reason
    assert "host" in asked


def test_no_torch(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = page(Patient(linux.here, "auto"))
    assert broken(found) == ["torch"]
    assert found["devices"]["card"].state == "unknown"
    assert {"kernels", "toolchain", "model"} <= set(found)


def test_a_torch_that_ends_the_process_which_imports_it_is_broken(
    linux: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of that name in the way may call `sys.exit`: the page must not say that nothing is broken."""
    monkeypatch.setattr(system, "torch_build", lambda: sys.exit(3))
    found = page(Patient(linux.here, "auto"))
    assert broken(found) == ["torch"]
    assert "SystemExit: 3" in found["system"]["torch"].reason
    assert found["devices"]["card"].value == "not looked for"


def test_a_card_that_was_asked_for_and_is_not_there_is_broken_and_a_wrong_name_is_a_mistake(linux: Machine) -> None:
    fake = card()
    fake.devices = []
    found = page(Patient(linux.here, "cuda", fake))
    assert broken(found) == ["card"]
    assert "torch sees no accelerator" in found["devices"]["card"].reason
    for spec in ("gpu", "sim:", "cuda:7"):
        with pytest.raises(OptionError):
            page(Patient(linux.here, spec, card()))


def test_a_card_that_does_not_answer_is_broken(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    fake = card()
    monkeypatch.setattr(examination, "LONG", 0.2)
    monkeypatch.setattr(fake, "properties", lambda index: release.wait(60))
    try:
        patient = Patient(linux.here, "cuda:0", fake)
        assert "0.2 s" in (examination.open_patient(patient) or Check("", "ok", "")).reason
        assert patient.card is None
    finally:
        release.set()


def raise_(*_: Any, **__: Any) -> Any:
    raise KeyError("planted")


@pytest.mark.parametrize(
    ("module", "name", "line"),
    [
        (system, "operating_system", "os"),
        (system, "processor", "processor"),
        (system, "packages", "packages"),
        (system, "variables", "variables"),
        (system, "distributed", "torch.distributed"),
        (devices, "accelerators", "accelerators"),
        (devices, "chosen", "card"),
        (memory, "sources", "sources"),
        (memory, "free", "free"),
        (memory, "wddm", "WDDM budget"),
        (memory, "spill", "spill"),
        (attention, "verdict", "attention"),
        (kernels, "triton", "triton"),
        (kernels, "hip_ext", "hip_ext"),
        (examination.building, "lines", "toolchain"),
        (host, "bandwidth", "host bandwidth"),
        (examination.carried, "whole", "carried model"),
    ],
)
def test_whatever_raises_is_a_line_and_the_page_goes_on(
    linux: Machine, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, line: str
) -> None:
    monkeypatch.setattr(module, name, raise_)
    found = page(Patient(linux.here, "cpu", card=HostCard()))
    planted = [check for checks in found.values() for check in checks.values() if "planted" in check.reason]
    assert [(check.name, check.state) for check in planted] == [(line, "unknown")]
    assert list(found) == SECTIONS


def test_a_simulated_card_is_examined_as_one(linux: Machine) -> None:
    patient = Patient(linux.here, "sim:16368MiB+wddm")
    found = page(patient)
    assert broken(found) == []
    assert isinstance(patient.card, SimulatedCard)
    assert found["memory"]["ledger"].facts["bytes"] == 15569 << 20
    assert found["devices"]["card"].facts["can_swap"] is True
