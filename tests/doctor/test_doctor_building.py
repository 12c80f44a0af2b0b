"""Every probe of the toolchain has its line, with what overrides it and why nothing was found."""

from __future__ import annotations

from dataclasses import replace

from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.outside import Outside
from mmswap.doctor import building
from mmswap.doctor.check import Check
from mmswap.doctor.patient import Patient


def lines(machine: Machine, *, card: bool = False) -> dict[str, Check]:
    patient = Patient(machine.here, "auto")
    if card:
        cuda = FakeCuda(hip=True)
        cuda.devices[0] = replace(cuda.devices[0], arch="gfx1030:xnack-")
        patient.take(AcceleratorCard(cuda, 0, outside=Outside()))
    return {check.name: check for check in building.lines(patient)}


def test_every_probe_says_where_it_looked_and_what_would_override_it(linux: Machine) -> None:
    found = lines(linux)
    overrides = {
        "HIP SDK": "HIP_PATH", "clang++ for AMD": "MMSWAP_CLANG", "nvcc": "CUDA_HOME",
        "HIP architecture": "MMSWAP_HIP_ARCH", "build root": "MMSWAP_BUILD_ROOT",
    }  # fmt: skip
    for name, variable in overrides.items():
        assert variable in found[name].reason, name
    assert "C++ compiler" in found
    assert "VCVARS64" not in found


def test_windows_has_msvc_in_place_of_the_hosts_compiler(windows: Machine) -> None:
    found = lines(windows)
    assert "VCVARS64" in found["MSVC"].reason
    assert "C++ compiler" not in found


def test_libraries_named_by_hand_have_a_line_and_a_note_when_they_are_not_there(linux: Machine) -> None:
    assert not {"MMSWAP_HIP_LIBRARY", "MMSWAP_HIPRTC"} & set(lines(linux))
    linux.file("/mine/kernels.so")
    linux.environ |= {"MMSWAP_HIP_LIBRARY": "/mine/kernels.so", "MMSWAP_HIPRTC": "/mine/nothing.so"}
    found = lines(linux)
    assert (found["MMSWAP_HIP_LIBRARY"].state, found["MMSWAP_HIP_LIBRARY"].value) == ("ok", "/mine/kernels.so")
    assert found["MMSWAP_HIPRTC"].state == "note"
    assert "no such file" in found["MMSWAP_HIPRTC"].reason
    linux.environ["MMSWAP_HIPRTC"] = ""
    assert "set but empty" in lines(linux)["MMSWAP_HIPRTC"].reason


def test_a_missing_compiler_matters_where_an_amd_card_is(linux: Machine) -> None:
    assert lines(linux)["HIP SDK"].state == "ok"
    assert lines(linux, card=True)["HIP SDK"].state == "note"
    assert lines(linux, card=True)["HIP architecture"].value == "gfx1030"
