"""Cards that are a part of the processor: apertures, carve-outs, and bytes that are the host's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard, open_card
from mmswap.card.backend import Properties
from mmswap.card.outside import Outside
from mmswap.card.sysfs import AmdgpuCard

MIB, GIB = 1 << 20, 1 << 30


def apu(
    driver: tuple[int, int],
    *,
    total: int,
    available: int | None,
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
    assert apu(pool, total=62 * GIB, available=32 * GIB, installed=0).free().bytes == 30 * GIB  # nobody says how much
    assert apu((0, 0), total=0, available=32 * GIB, installed=125 * GIB).free().bytes == 30 * GIB  # only the host knows
    (tmp_path / "mem_info_vram_total").write_text(str(512 * MIB))
    (tmp_path / "mem_info_vram_used").write_text(str(500 * MIB))
    small = AmdgpuCard((tmp_path,), "the only AMD card")
    assert apu(pool, total=62 * GIB, available=32 * GIB, installed=125 * GIB, amdgpu=small).free().bytes == 30 * GIB


def test_a_cuda_card_in_the_hosts_memory_takes_the_page_cache_for_used() -> None:
    card = apu((3 * GIB, 119 * GIB), total=119 * GIB, available=96 * GIB, installed=119 * GIB, hip=False)
    assert (card.free().bytes, card.free().doubtful) == (90 * GIB, False)


def test_a_host_without_memory_leaves_an_apu_nothing() -> None:
    """A container at its limit: 0 bytes are an answer, while no answer bounds nothing."""
    pool = (50 * GIB, 62 * GIB)
    full = apu(pool, total=62 * GIB, available=0, installed=125 * GIB).free()
    assert (full.bytes, full.over) == (0, 512 * MIB)
    assert apu(pool, total=62 * GIB, available=None, installed=125 * GIB).free().bytes == 50 * GIB


def test_a_limit_does_not_change_whose_memory_an_apu_uses(tmp_path: Path) -> None:
    carved = apu((80 * GIB, 96 * GIB), total=96 * GIB, available=28 * GIB, installed=31 * GIB, limit=30 * GIB)
    assert (carved.free().bytes, carved.total()) == (30 * GIB, 30 * GIB)
    for name, value in (("vram_total", 512 * MIB), ("vram_used", 500 * MIB), ("gtt_used", 7)):
        (tmp_path / f"mem_info_{name}").write_text(str(value))
    small = AmdgpuCard((tmp_path,), "the only AMD card")
    shared = apu(
        (50 * GIB, 62 * GIB), total=62 * GIB, available=40 * GIB, installed=125 * GIB, limit=500 * MIB, amdgpu=small
    )
    assert shared.free().bytes == 500 * MIB
    assert shared.spilled().how == ""


def test_an_apus_aperture_stays_one_below_a_limit(tmp_path: Path) -> None:
    card = apu((GIB, APERTURE[1]), total=96 * GIB, available=28 * GIB, installed=31 * GIB, limit=12 * GIB)
    assert (card.free().bytes, card.free().doubtful) == (12 * GIB, True)
    (tmp_path / "mem_info_vram_total").write_text(str(96 * GIB))
    (tmp_path / "mem_info_vram_used").write_text(str(2 * GIB))
    kernel = AmdgpuCard((tmp_path,), "the only AMD card")
    card = apu(
        (GIB, APERTURE[1]), total=APERTURE[1], available=28 * GIB, installed=31 * GIB, limit=12 * GIB, amdgpu=kernel
    )
    assert (card.free().bytes, card.free().doubtful) == (12 * GIB, True)


def test_the_users_word_mends_a_wrong_size() -> None:
    card = apu(APERTURE, total=APERTURE[1], available=28 * GIB, installed=31 * GIB, limit=90 * GIB)
    assert (card.total(), card.free().bytes) == (90 * GIB, 90 * GIB)
    fake = FakeCuda(total=0)
    fake.driver = lambda: (0, 0)
    assert open_card("cuda:0", fake).free().bytes == 0
    limited = open_card("cuda:0", fake, vram_limit=8 * GIB)
    assert (limited.total(), limited.free().bytes) == (8 * GIB, 8 * GIB)


def test_a_fraction_is_taken_of_the_size_that_torch_tells_and_not_of_the_limit() -> None:
    card = apu((60 * GIB, 62 * GIB), total=62 * GIB, available=120 * GIB, installed=125 * GIB, limit=20 * GIB)
    card.backend.share = 0.5  # type: ignore[attr-defined]
    assert card.free().bytes == 20 * GIB


def test_nothing_can_spill_from_a_card_that_lives_in_the_hosts_memory(tmp_path: Path) -> None:
    for name, value in (("vram_total", 512 * MIB), ("gtt_used", 20 * GIB)):
        (tmp_path / f"mem_info_{name}").write_text(str(value))
    small = AmdgpuCard((tmp_path,), "the only AMD card")
    found = apu((60 * GIB, 62 * GIB), total=62 * GIB, available=32 * GIB, installed=125 * GIB, amdgpu=small).spilled()
    assert (found.bytes, found.how, "lives in the host's memory" in found.cause) == (0, "", True)
