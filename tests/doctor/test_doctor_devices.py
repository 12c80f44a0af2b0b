"""Devices: which was chosen and why; a device that is listed and runs no kernel; a torch that sees none."""

from __future__ import annotations

import warnings

import pytest
import torch
from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.backend import Properties
from mmswap.card.opening import open_card
from mmswap.doctor import devices
from mmswap.doctor.patient import Patient

GIB = 1 << 30
INTEGRATED = Properties("AMD Radeon Graphics", 2 * GIB, True, "gfx1036")
DISCRETE = Properties("AMD Radeon RX 7900 XT", 20 * GIB, False, "gfx1100")
INVALID = RuntimeError("HIP error: device kernel image is invalid\nmore")


@pytest.fixture
def cuda() -> FakeCuda:
    fake = FakeCuda(hip=True)
    fake.devices = [INTEGRATED, DISCRETE]
    fake.architectures = ("gfx1100", "gfx1101")
    return fake


def patient(machine: Machine, fake: FakeCuda, spec: str = "auto") -> Patient:
    found = Patient(machine.here, spec, fake)
    found.take(open_card(spec, fake))
    return found


def test_the_discrete_card_is_chosen_though_it_is_device_1_and_it_is_said_why(linux: Machine, cuda: FakeCuda) -> None:
    found = patient(linux, cuda)
    listed = devices.accelerators(found)
    assert [check.name for check in listed] == ["cuda:0", "cuda:1"]
    assert [check.facts["integrated"] for check in listed] == [True, False]
    assert [check.facts["total"] for check in listed] == [2 * GIB, 20 * GIB]
    assert "gfx1036" in listed[0].value
    assert "part of the processor" in listed[0].value
    check = devices.chosen(found, listed)
    assert (check.state, check.facts["spec"]) == ("ok", "cuda:1")
    assert "largest" in check.reason
    assert check.facts["total"] == 20 * GIB


def test_a_device_that_runs_no_kernel_is_named_with_its_architecture_and_the_wheel(
    linux: Machine, cuda: FakeCuda
) -> None:
    cuda.broken[1] = INVALID
    found = patient(linux, cuda)
    listed = devices.accelerators(found)
    assert [check.state for check in listed] == ["ok", "note"]
    assert "RUNS NO KERNEL" in listed[1].value
    for word in ("device kernel image is invalid", "gfx1100", "ROCm wheel", "--card cpu"):
        assert word in listed[1].reason
    check = devices.chosen(found, listed)
    assert (check.state, check.facts["spec"]) == ("ok", "cuda:0")


def test_when_none_runs_a_kernel_the_processor_is_no_choice(linux: Machine, cuda: FakeCuda) -> None:
    cuda.broken = {0: INVALID, 1: INVALID}
    found = patient(linux, cuda)
    check = devices.chosen(found, devices.accelerators(found))
    assert (check.state, check.facts["spec"]) == ("broken", "cpu")
    assert "gfx1100" in check.reason
    asked = patient(linux, cuda, "cpu")
    assert devices.chosen(asked, devices.accelerators(asked)).state == "ok"


def test_the_first_kernel_is_tried_on_the_card_that_was_chosen(linux: Machine, cuda: FakeCuda) -> None:
    found = patient(linux, cuda)
    assert devices.first_kernel(found).state == "ok"
    cuda.broken[1] = INVALID
    check = devices.first_kernel(found)
    assert (check.state, check.value) == ("broken", "fails on gfx1100")
    assert "gfx1101" in check.reason


def test_a_device_that_cannot_be_asked_is_a_line_beside_the_others(linux: Machine, cuda: FakeCuda) -> None:
    def properties(index: int) -> Properties:
        if index == 0:
            raise RuntimeError("no such device")
        return DISCRETE

    cuda.properties = properties  # type: ignore[method-assign]
    listed = devices.accelerators(Patient(linux.here, "auto", cuda))
    assert [check.state for check in listed] == ["note", "ok"]
    assert "no such device" in listed[0].reason


def test_no_device_and_no_card_is_fine_and_what_torch_warned_of_is_told(linux: Machine, cuda: FakeCuda) -> None:
    cuda.devices = []
    (check,) = devices.accelerators(Patient(linux.here, "auto", cuda))
    assert check.state == "ok"

    def count() -> int:
        warnings.warn("CUDA: The driver is too old (Triggered internally at ../c10/x.cpp:1.)", stacklevel=1)
        return 0

    cuda.count = count  # type: ignore[method-assign]
    (check,) = devices.accelerators(Patient(linux.here, "auto", cuda))
    assert check.state == "note"
    assert "driver is too old" in check.reason
    assert "x.cpp" not in check.reason


@pytest.mark.parametrize(
    ("vendor", "hip", "said", "advice"),
    [
        ("0x1002", None, "AMD", "ROCm build"),
        ("0x10de", None, "NVIDIA", "CUDA build"),
        ("0x1002", "7.2", "AMD", "driver"),
        ("0x1234", None, "", ""),
    ],
)
def test_a_card_that_the_system_lists_and_torch_does_not_see(
    linux: Machine,
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    hip: str | None,
    said: str,
    advice: str,
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None)
    cuda.devices = []
    linux.file("/sys/class/drm/card1/device/vendor", vendor + "\n")
    (check,) = devices.accelerators(Patient(linux.here, "auto", cuda))
    assert check.state == ("note" if said else "ok")
    assert said in check.reason
    assert advice in check.advice
