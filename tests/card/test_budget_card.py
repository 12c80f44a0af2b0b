"""Every source of an accelerator put together: Windows, Linux with ROCm, NVIDIA, APUs, caps, bytes really placed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard, open_card
from mmswap.card import sysfs as amdgpu_files
from mmswap.card.backend import Properties, TorchBackend
from mmswap.card.nvml import NvmlCard
from mmswap.card.outside import Outside, look_outside
from mmswap.card.sysfs import AmdgpuCard
from mmswap.card.wddm import Budget

MIB, GIB = 1 << 20, 1 << 30
CARD = 16368 * MIB


@dataclass
class FakeWddm:
    """What `mmswap.card.wddm.Wddm` answers; every figure may be moved while a test runs."""

    budget: int = 15569 * MIB
    usage: int = 141 * MIB
    used: int | str = "unknown, because there is no such counter"
    shared: int | str = 0
    mode: str = "default"
    trouble: str = ""

    def memory(self) -> Budget | str:
        return self.trouble or Budget(self.budget, self.usage, None, 0, 0)

    def adapter_used(self) -> int | str:
        return self.used

    def process_shared(self) -> int | str:
        return self.shared


def windows(fake: FakeCuda, wddm: FakeWddm | str) -> AcceleratorCard:
    return AcceleratorCard(fake, 0, outside=Outside(wddm=wddm))  # type: ignore[arg-type]


def rocm_on_windows() -> FakeCuda:
    """A driver that counts this process alone, and 141 MiB of its own."""
    fake = FakeCuda(total=CARD, windows=True, hip=True)
    fake.driver = lambda: (CARD - 141 * MIB - fake.reserved(0), CARD)
    return fake


def test_windows_lowers_the_drivers_figure_and_the_budget_is_read_at_every_call() -> None:
    fake, wddm = rocm_on_windows(), FakeWddm()
    card = windows(fake, wddm)
    assert card.free().bytes == 15428 * MIB
    wddm.budget = 14515 * MIB
    reading = card.free()
    assert reading.bytes == (16227 - (16368 - 14515)) * MIB
    assert "less 1.8 GiB: Windows (WDDM) budgets 14.2 GiB of 16.0 GiB for this process" in reading.reason
    assert not reading.doubtful


def test_a_process_beyond_its_budget_is_over() -> None:
    fake = rocm_on_windows()
    held = fake.empty(16142 * MIB, 0)
    reading = windows(fake, FakeWddm(budget=14538 * MIB, usage=16283 * MIB)).free()
    assert (reading.bytes, reading.over) == (0, 1745 * MIB)
    assert held.numel() == 16142 * MIB


def test_strict_takes_usage_and_headroom() -> None:
    card = windows(rocm_on_windows(), FakeWddm(mode="strict", usage=441 * MIB))
    assert card.free().bytes == (15569 - 441) * MIB - 15569 * MIB // 16


@pytest.mark.parametrize("wddm", [FakeWddm(trouble="unknown, because no adapter fits"), "it is not asked for"])
def test_without_a_budget_the_drivers_figure_stands(wddm: FakeWddm | str) -> None:
    reading = windows(rocm_on_windows(), wddm).free()
    assert (reading.bytes, reading.doubtful) == (16227 * MIB, False)
    assert [s.bytes for s in reading.sources if s.name == "WDDM"] == [None]


def test_all_free_on_windows_rocm_is_replaced_by_the_own_account_and_still_lowered() -> None:
    fake = FakeCuda(total=CARD, windows=True, hip=True)
    fake.driver = lambda: (CARD, CARD)
    held = fake.empty(2000 * MIB, 0)
    reading = windows(fake, FakeWddm()).free()
    assert (reading.bytes, reading.doubtful) == ((15569 - 2000) * MIB, True)
    assert windows(fake, "it is not asked for").free().bytes == (16368 - 2000) * MIB
    assert held.numel() == 2000 * MIB


def test_a_whole_card_free_is_believed_of_cuda_on_windows() -> None:
    fake = FakeCuda(total=CARD, windows=True)
    assert (windows(fake, "it is not asked for").free().bytes, windows(fake, "").free().doubtful) == (CARD, False)


def test_what_all_processes_hold_bounds_the_answer() -> None:
    fake = rocm_on_windows()
    reading = windows(fake, FakeWddm(used=9000 * MIB)).free()
    assert reading.bytes == (16368 - 9000) * MIB
    assert reading.reason.startswith("PDH says")
    assert windows(fake, FakeWddm(used=16380 * MIB)).free().bytes == 0  # fuller than torch's size of the card: full
    assert windows(fake, FakeWddm(used=40 * GIB)).free().bytes == 15428 * MIB  # nonsense


def test_what_the_driver_keeps_for_this_process_is_not_held_by_others() -> None:
    """After everything was freed, Windows still counted 1946 MiB that HIP keeps; HIP hands them out again."""
    fake = rocm_on_windows()
    assert windows(fake, FakeWddm(usage=1946 * MIB, used=1946 * MIB)).free().bytes == 15428 * MIB
    held_by_others = windows(fake, FakeWddm(usage=1946 * MIB, used=(1946 + 3000) * MIB)).free()
    assert held_by_others.bytes == (16368 - 141 - 3000) * MIB
    assert (
        windows(fake, FakeWddm(mode="strict", usage=1946 * MIB)).free().bytes
        == (15569 - 1946) * MIB - 15569 * MIB // 16
    )


def rocm_on_linux(tmp_path: Path, used: int, *, total: int = CARD) -> tuple[FakeCuda, Outside, Path]:
    fake = FakeCuda(total=total, hip=True)
    for name, value in (("vram_total", total), ("vram_used", used), ("gtt_used", 20 * MIB)):
        (tmp_path / f"mem_info_{name}").write_text(str(value))
    return fake, Outside(amdgpu=AmdgpuCard((tmp_path,), "by its PCI address 0000:03:00.0")), tmp_path


def test_graphics_that_rocm_does_not_see_are_in_the_kernels_figure(tmp_path: Path) -> None:
    fake, outside, folder = rocm_on_linux(tmp_path, 3 * GIB)
    card = AcceleratorCard(fake, 0, outside=outside)
    reading = card.free()
    assert reading.bytes == CARD - 3 * GIB
    assert reading.reason.startswith("amdgpu sysfs says that of 16.0 GiB all processes use 3.0 GiB")
    (folder / "mem_info_vram_used").write_text(str(CARD + 1))
    assert (card.free().bytes, card.free().doubtful) == (CARD, True)
    (folder / "mem_info_vram_used").write_text("0")  # fewer than this process: the driver decides
    fake.driver = lambda: (5 * GIB, CARD)
    assert card.free().bytes == 5 * GIB


def test_what_torch_caches_is_used_by_the_kernels_count_and_free_to_us(tmp_path: Path) -> None:
    fake, outside, folder = rocm_on_linux(tmp_path, 0)
    card = AcceleratorCard(fake, 0, outside=outside)
    held = fake.empty(4 * GIB, 0)
    (folder / "mem_info_vram_used").write_text(str(5 * GIB))
    assert card.free().bytes == CARD - 5 * GIB
    del held  # stays reserved
    assert card.free().bytes == CARD - GIB
    assert [s.bytes for s in card.sources() if s.name == "allocator cache"] == [4 * GIB]


def test_spill_sources_of_each_system(tmp_path: Path) -> None:
    fake, outside, folder = rocm_on_linux(tmp_path, 0)
    linux = AcceleratorCard(fake, 0, outside=outside)
    assert (linux.spilled().bytes, linux.spilled().how) == (20 * MIB, "amdgpu's GTT")
    (folder / "mem_info_gtt_used").write_text("much")
    assert (linux.spilled().bytes, linux.spilled().how) == (0, "")
    assert "no number" in linux.spilled().cause
    wddm = FakeWddm(shared=929 * MIB)
    assert windows(rocm_on_windows(), wddm).spilled().bytes == 929 * MIB
    wddm.shared = "unknown, because no counter"
    assert windows(rocm_on_windows(), wddm).spilled().cause == "no counter"
    lives_there = apu(
        (60 * GIB, 62 * GIB), total=62 * GIB, available=32 * GIB, installed=125 * GIB, amdgpu=outside.amdgpu
    )
    assert (lives_there.spilled().how, "lives in the host's memory" in lives_there.spilled().cause) == ("", True)
    nvidia = AcceleratorCard(FakeCuda(), 0, outside=Outside()).spilled()
    assert (nvidia.how, "refuses an allocation" in nvidia.cause) == ("", True)
    assert open_card("cpu").spilled().bytes == 0


def test_nvml_bounds_and_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    card = AcceleratorCard(fake, 0, outside=Outside(nvml="libnvidia-ml.so.1 is not installed"))
    assert card.free().bytes == 16 * GIB
    assert "unknown, because libnvidia-ml.so.1 is not installed" in [source.reason for source in card.sources()]
    found = NvmlCard(SimpleNamespace(), None, "by its UUID")  # type: ignore[arg-type]
    monkeypatch.setattr("mmswap.card.nvml._memory", lambda library, handle: (16 * GIB, 6 * GIB))
    assert AcceleratorCard(fake, 0, outside=Outside(nvml=found)).free().bytes == 6 * GIB


def test_the_users_cap_and_torchs_own_fraction_bound_the_answer() -> None:
    fake = FakeCuda()
    held = fake.empty(2 * GIB, 0)
    card = open_card("cuda:0", fake, vram_limit=5 * GIB)
    assert card.free().bytes == 3 * GIB
    assert "--vram-limit allows 5.0 GiB" in card.free().reason
    assert open_card("cuda:0", fake, vram_limit=64 * GIB).free().bytes == 14 * GIB  # a cap never adds to a card
    fake.share = 0.25
    assert open_card("cuda:0", fake).free().bytes == 2 * GIB
    assert held.numel() == 2 * GIB


def apu(
    driver: tuple[int, int],
    *,
    total: int,
    available: int,
    installed: int,
    hip: bool = True,
    limit: int | None = None,
    amdgpu: AmdgpuCard | None = None,
) -> AcceleratorCard:
    fake = FakeCuda(total=total, hip=hip)
    fake.devices = [Properties("AMD Radeon 8060S", total, True, "gfx1151")]
    fake.driver = lambda: driver
    outside = Outside(amdgpu=amdgpu, host_available=lambda: available, host_installed=lambda: installed)
    return AcceleratorCard(fake, 0, limit, outside=outside)


APERTURE = (15 * GIB, 15 * GIB + GIB // 2)


def test_an_apus_aperture_never_wins_over_its_carve_out(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """128 GiB, of which 96 are carved out: the host sees 31, and the driver reports half of those as the card."""
    with caplog.at_level(logging.WARNING):
        reading = apu(APERTURE, total=96 * GIB, available=28 * GIB, installed=31 * GIB).free()
    assert (reading.bytes, reading.doubtful) == (96 * GIB, True)
    assert "an aperture of the 96.0 GiB" in caplog.text
    assert "--vram-limit SIZE" in caplog.text
    (tmp_path / "mem_info_vram_total").write_text(str(96 * GIB))
    (tmp_path / "mem_info_vram_used").write_text(str(10 * GIB))
    kernel = AmdgpuCard((tmp_path,), "the only AMD card")
    for told in (96 * GIB, APERTURE[1]):  # torch's own properties may tell the aperture too
        card = apu(APERTURE, total=told, available=28 * GIB, installed=31 * GIB, amdgpu=kernel)
        assert (card.total(), card.free().bytes) == (96 * GIB, 86 * GIB)


def test_an_aperture_in_torchs_properties_does_not_hide_what_the_driver_knows() -> None:
    reading = apu((90 * GIB, 96 * GIB), total=APERTURE[1], available=28 * GIB, installed=31 * GIB).free()
    assert (reading.bytes, reading.doubtful) == (90 * GIB, False)


def test_an_apu_that_lives_in_the_hosts_memory_is_bounded_by_what_the_host_has(tmp_path: Path) -> None:
    pool = (60 * GIB, 62 * GIB)
    assert apu(pool, total=62 * GIB, available=32 * GIB, installed=125 * GIB).free().bytes == 30 * GIB
    assert apu(pool, total=62 * GIB, available=120 * GIB, installed=125 * GIB).free().bytes == 60 * GIB
    (tmp_path / "mem_info_vram_total").write_text(str(512 * MIB))
    (tmp_path / "mem_info_vram_used").write_text(str(500 * MIB))
    small = AmdgpuCard((tmp_path,), "the only AMD card")
    assert apu(pool, total=62 * GIB, available=32 * GIB, installed=125 * GIB, amdgpu=small).free().bytes == 30 * GIB


def test_a_cuda_card_in_the_hosts_memory_takes_the_page_cache_for_used() -> None:
    card = apu((3 * GIB, 119 * GIB), total=119 * GIB, available=96 * GIB, installed=119 * GIB, hip=False)
    assert (card.free().bytes, card.free().doubtful) == (90 * GIB, False)


def test_the_users_word_mends_a_wrong_size() -> None:
    card = apu(APERTURE, total=APERTURE[1], available=28 * GIB, installed=31 * GIB, limit=90 * GIB)
    assert (card.total(), card.free().bytes) == (90 * GIB, 90 * GIB)
    fake = FakeCuda(total=0)
    fake.driver = lambda: (0, 0)
    assert open_card("cuda:0", fake).free().bytes == 0
    assert open_card("cuda:0", fake, vram_limit=8 * GIB).free().bytes == 8 * GIB


@pytest.mark.parametrize("answer", [None, "16 GiB", (None, 1), (1,), (1, 2, 3), (float("nan"), 5), (5, float("inf"))])
def test_a_driver_that_answers_nonsense_is_no_crash(answer: Any) -> None:
    fake = FakeCuda()
    fake.driver = lambda: answer
    reading = AcceleratorCard(fake, 0, outside=Outside()).free()
    assert (reading.bytes, reading.doubtful) == (16 * GIB, True)
    assert "driver cannot be used: asking for it failed with" in reading.reason


def test_bytes_are_really_placed_and_given_back() -> None:
    fake = FakeCuda(total=16 * GIB)
    card = AcceleratorCard(fake, 0, outside=Outside())
    before = card.free().bytes
    with card.placed("KV cache", 3 * GIB) as fits:
        assert fits
        assert card.free().bytes == before - 3 * GIB
    assert card.free().bytes == before
    assert fake.log[-1] == "empty cache"


def test_bytes_that_cannot_be_placed_are_an_answer_and_no_crash() -> None:
    fake = FakeCuda(total=16 * GIB)
    fake.room = 2 * GIB
    card = AcceleratorCard(fake, 0, outside=Outside())
    with card.placed("KV cache", 20 * GIB) as fits:
        assert not fits
        assert (card.free().bytes, card.free().over) == (0, 4 * GIB)
        assert "20.0 GiB could not be placed" in card.free().reason
    assert card.free().bytes == 16 * GIB

    def refuse(nbytes: int, index: int) -> Any:
        raise RuntimeError("HIP error: an illegal memory access")

    fake.empty = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="illegal"), card.placed("KV cache", 1):
        pass
    with pytest.raises(KeyError), open_card("cpu").placed("KV cache", 1):
        raise KeyError


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


def test_an_integrated_card_is_not_looked_for_by_a_size_that_may_be_an_aperture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002")
    (device / "mem_info_vram_total").write_text(str(96 * GIB))
    monkeypatch.setattr(amdgpu_files, "ROOT", tmp_path)
    for integrated in (True, False):
        told = Properties("x", APERTURE[1], integrated)
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
