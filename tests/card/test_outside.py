"""Who is asked besides torch: by system, by address, by serial number; and what torch tells of a device."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard
from mmswap.card import sysfs as amdgpu_files
from mmswap.card.backend import Properties, TorchBackend
from mmswap.card.outside import look_outside
from mmswap.card.sysfs import AmdgpuCard

MIB, GIB = 1 << 20, 1 << 30
CARD = 16368 * MIB
APERTURE = 15 * GIB + GIB // 2


def test_what_is_outside_is_looked_for_by_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Properties("card", 16 * GIB, False)
    monkeypatch.setattr(amdgpu_files, "ROOT", tmp_path)
    linux = look_outside(found, kind="hip", platform="linux", index=0)
    assert linux.amdgpu == f"there is no AMD card among the 0 in {tmp_path}"
    assert (linux.nvml, linux.wddm) == (None, None)
    nvidia = look_outside(found, kind="cuda", platform="linux", index=0)
    assert (nvidia.amdgpu, nvidia.wddm) == (None, None)
    assert isinstance(nvidia.nvml, str)
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("mmswap.card.outside.open_wddm", lambda **given: asked.append(given))
    on_windows = look_outside(found, kind="hip", platform="win32", index=3)
    assert "MMSWAP_WDDM_BUDGET" in str(on_windows.wddm)
    assert asked == [{"kind": "hip", "ordinal": 3, "name": "card", "total": 16 * GIB, "pci": None}]
    integrated = Properties("AMD Radeon(TM) Graphics", 16 * GIB, True)
    assert "carve-out" in str(look_outside(integrated, kind="hip", platform="win32", index=0).wddm)
    assert len(asked) == 1


@pytest.mark.parametrize(("switch", "counted"), [(None, True), ("", True), ("0", False), ("maybe", False)])
def test_cuda_on_windows_counts_what_spilled_though_no_budget_is_asked_for(
    switch: str | None, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's driver moves memory to the host there too; only a word against it turns the counters off."""
    monkeypatch.delenv("MMSWAP_WDDM_BUDGET", raising=False)
    if switch is not None:
        monkeypatch.setenv("MMSWAP_WDDM_BUDGET", switch)

    def found(*, environ: dict[str, str] | None = None, **about: Any) -> Any:
        asked = environ == {"MMSWAP_WDDM_BUDGET": "1"}
        return SimpleNamespace(process_shared=lambda: 77 * MIB) if asked else None

    monkeypatch.setattr("mmswap.card.outside.open_wddm", found)
    fake = FakeCuda(total=CARD, windows=True)
    card = AcceleratorCard(fake, 0)
    assert [source.bytes for source in card.sources() if source.name in ("WDDM", "PDH")] == [None]
    assert card.free().bytes == CARD
    assert (card.spilled().bytes, card.spilled().how) == (
        (77 * MIB, "Windows' shared GPU memory") if counted else (0, "")
    )


def test_an_integrated_card_is_not_looked_for_by_a_size_that_may_be_an_aperture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002")
    (device / "mem_info_vram_total").write_text(str(96 * GIB))
    monkeypatch.setattr(amdgpu_files, "ROOT", tmp_path)
    for integrated in (True, False):
        told = Properties("x", APERTURE, integrated)
        found = look_outside(told, kind="hip", platform="linux", index=0).amdgpu
        assert isinstance(found, AmdgpuCard) == integrated


def test_hips_uuid_is_amdgpus_serial_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serial = "ab12cd34ef560789"
    for card, unique in (("card0", serial), ("card1", "0000000000000000")):
        device = tmp_path / card / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002")
        (device / "unique_id").write_text(unique)
        (device / "mem_info_vram_total").write_text("100")
        (device / "mem_info_vram_used").write_text("30" if unique == serial else "90")
    monkeypatch.setattr(amdgpu_files, "ROOT", tmp_path)
    raw = serial.encode().hex()
    uuid = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
    found = look_outside(Properties("x", 100, False, uuid=uuid), kind="hip", platform="linux", index=0).amdgpu
    assert isinstance(found, AmdgpuCard)
    assert found.vram().bytes == 70


def test_what_torch_tells_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        name="x", total_memory=5, is_integrated=1, gcnArchName="gfx90a:sramecc+:xnack-", major=9, minor=0
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: told)
    monkeypatch.setattr(torch.version, "hip", None)
    backend = TorchBackend()
    assert (backend.kind(), backend.properties(0)) == ("cuda", Properties("x", 5, True, "sm_90"))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    told.pci_domain_id, told.pci_bus_id, told.pci_device_id, told.uuid = 0, 0x2D, 0, "abc"
    assert (backend.kind(), backend.properties(0)) == ("hip", Properties("x", 5, True, "gfx90a", "0000:2d:00.0", "abc"))
    told.pci_bus_id = 0
    assert backend.properties(0).pci is None
    bare = SimpleNamespace(name="x", total_memory=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: bare)
    assert backend.properties(0) == Properties("x", 5, False)
