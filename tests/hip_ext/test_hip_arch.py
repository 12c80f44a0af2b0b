"""The architecture: by override, by the device, by the driver's list."""

from __future__ import annotations

import pytest
from fake_machine import Machine

from mmswap.hip_ext.arch import base_name, covers, hip_arch, is_rdna, kfd_name, names, unfit


@pytest.mark.parametrize(
    ("live", "want"),
    [("gfx1151", "gfx1151"), ("gfx1103", "gfx1103"), ("gfx90a:sramecc+:xnack-", "gfx90a"), ("", None), ("sm_90", None)],
)
def test_what_the_live_device_calls_itself(windows: Machine, live: str, want: str | None) -> None:
    found = hip_arch(windows.here, live)
    assert found.value == want
    assert found.source == ("the live device" if want else "")
    assert want or "MMSWAP_HIP_ARCH" in found.advice


def test_the_override_wins_and_a_senseless_one_is_said(windows: Machine) -> None:
    windows.environ["MMSWAP_HIP_ARCH"] = " gfx1100, gfx1201:xnack- "
    assert hip_arch(windows.here, "gfx1030").value == "gfx1100;gfx1201"
    windows.environ["MMSWAP_HIP_ARCH"] = "rdna3"
    found = hip_arch(windows.here, "gfx1030")
    assert found.value == "gfx1030"
    assert "rdna3" in found.faults[0]
    windows.environ["MMSWAP_HIP_ARCH"] = ""
    assert "empty" in hip_arch(windows.here, "gfx1030").faults[0]


def test_the_amdgpu_driver_lists_cards_and_processors(linux: Machine) -> None:
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    for node, version in enumerate((0, 110000, 110000, 100306)):
        linux.file(f"{nodes}/{node}/properties", f"cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n")
    found = hip_arch(linux.here, "")
    assert (found.value, found.source) == ("gfx1100;gfx1036", "the amdgpu driver")


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (110001, "gfx1101"), (120001, "gfx1201"), (90402, "gfx942")]
)
def test_the_drivers_numbers_are_names(version: int, name: str) -> None:
    assert kfd_name(version) == name


def test_desktop_architectures_are_told_from_data_centre_ones() -> None:
    assert all(is_rdna(name) for name in ("gfx1030", "gfx1100:x", "gfx1151", "gfx1201"))
    assert not any(is_rdna(name) for name in ("gfx90a", "gfx942", "sm_90", ""))
    assert base_name("GFX90a:sramecc+") == "gfx90a"


def test_several_architectures_are_read_as_people_write_them() -> None:
    assert names(" gfx1100; GFX1030:xnack-,gfx1100\n") == ("gfx1100", "gfx1030")
    assert names(" ;, ") == ()


def test_what_has_waves_of_64_lanes_is_refused_by_name() -> None:
    fit = ("gfx1010", "gfx1036", "gfx1103", "gfx1153", "gfx1201", "gfx1250", "gfx10-3-generic", "gfx12-generic")
    assert not any(unfit(name) for name in fit)
    for name in ("gfx803", "gfx906", "gfx90a", "gfx942", "gfx950", "gfx9-4-generic", "sm_90", ""):
        assert name in str(unfit(name))


def test_code_for_a_family_runs_on_its_cards_alone() -> None:
    assert covers("gfx1103", "gfx1103")
    assert covers("gfx11-generic", "gfx1103")
    assert covers("gfx11-generic", "gfx1152")
    assert covers("gfx10-3-generic", "gfx1031")
    assert covers("gfx12-generic", "gfx1201")
    assert not covers("gfx11-generic", "gfx1170")
    assert not covers("gfx12-generic", "gfx1250")
    assert not covers("gfx10-3-generic", "gfx1012")
    assert not covers("gfx1100", "gfx1103")
