"""Every source of an accelerator put together: Windows, Linux with ROCm, NVIDIA, caps, bytes really placed."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard, open_card
from mmswap.card.nvml import NvmlCard
from mmswap.card.outside import Outside
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


@pytest.mark.parametrize(("mode", "free"), [("default", 5 * GIB), ("strict", 5 * GIB - 100 * MIB - 11 * GIB // 16)])
def test_a_driver_that_does_not_see_what_is_held_is_not_what_windows_lowers(mode: str, free: int) -> None:
    """Nearly the whole card is reported as free, whatever is held: the own account is lowered in its place."""
    fake = FakeCuda(total=12 * GIB, windows=True, hip=True)
    fake.driver = lambda: (12 * GIB - MIB, 12 * GIB)
    held = fake.empty(6 * GIB, 0)
    assert windows(fake, FakeWddm(budget=11 * GIB, usage=6 * GIB + 100 * MIB, mode=mode)).free().bytes == free
    assert held.numel() == 6 * GIB


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


def test_a_fraction_of_nothing_leaves_nothing() -> None:
    fake = FakeCuda()
    fake.share = 0.0
    assert AcceleratorCard(fake, 0, outside=Outside()).free().bytes == 0


def test_a_size_that_torch_does_not_tell_is_the_drivers_before_the_users() -> None:
    fake = FakeCuda(total=0)
    fake.driver = lambda: (10 * GIB, 16 * GIB)
    card = AcceleratorCard(fake, 0, outside=Outside())
    assert (card.total(), card.free().bytes, card.free().doubtful) == (16 * GIB, 10 * GIB, False)
    assert AcceleratorCard(fake, 0, 64 * GIB, outside=Outside()).free().bytes == 10 * GIB  # a cap never adds to a card
    fake.driver = lambda: (17 * GIB, 16 * GIB)
    assert AcceleratorCard(fake, 0, outside=Outside()).free().bytes == 0


def test_bytes_that_another_thread_gives_back_between_two_counts_are_not_counted_twice() -> None:
    fake = FakeCuda()
    held = fake.empty(6 * GIB, 0)
    del held  # cached
    card, counts = AcceleratorCard(fake, 0, outside=Outside()), iter((6 * GIB, 0))
    fake.driver = lambda: (16 * GIB, 16 * GIB)  # what was cached is the driver's again
    fake.reserved = lambda index: next(counts)  # type: ignore[method-assign]
    assert card.free().bytes == 10 * GIB


def test_what_lies_idle_in_a_private_pool_is_not_free_to_others() -> None:
    class Pool:
        idle = 2 * GIB

        def scratch(self) -> int:
            return self.idle

    fake, pool = FakeCuda(), Pool()
    held = fake.empty(6 * GIB, 0)
    del held  # cached, of which the pool has a part
    card = AcceleratorCard(fake, 0, outside=Outside())
    card.know(pool)
    assert card.free().bytes == 14 * GIB
    pool.idle = 7 * GIB  # more than is cached
    assert card.free().bytes == 10 * GIB
    del pool
    assert card.free().bytes == 16 * GIB


def test_torch_that_cannot_count_is_no_crash_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCuda()
    fake.driver = lambda: (5 * GIB, 16 * GIB)

    def raises(index: int) -> int:
        raise RuntimeError("no allocator")

    fake.reserved = fake.allocated = raises  # type: ignore[method-assign]
    card = AcceleratorCard(fake, 0, outside=Outside())
    assert [card.free().bytes, card.free().bytes] == [5 * GIB, 5 * GIB]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["no allocator" in warning for warning in warnings] == [True, True]  # reserved, and allocated


def test_a_memory_fraction_that_cannot_be_asked_for_is_none_and_said(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCuda()

    def raises(index: int) -> float:
        raise RuntimeError("no such call")

    fake.allowed_share = raises  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        assert AcceleratorCard(fake, 0, outside=Outside()).free().bytes == 16 * GIB
    assert "torch does not say its memory fraction: no such call" in caplog.text


def test_each_source_that_lies_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake, outside, folder = rocm_on_linux(tmp_path, GIB)
    card = AcceleratorCard(fake, 0, outside=outside)
    (folder / "mem_info_vram_used").write_text("much")
    card.free()
    fake.driver = lambda: (0, 0)
    card.free()
    card.free()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["driver cannot be used" in warning for warning in warnings] == [False, True]


@pytest.mark.parametrize("answer", [None, "16 GiB", (None, 1), (1,), (1, 2, 3), (float("nan"), 5), (5, float("inf"))])
def test_a_driver_that_answers_nonsense_is_no_crash(answer: Any) -> None:
    fake = FakeCuda()
    fake.driver = lambda: answer
    reading = AcceleratorCard(fake, 0, outside=Outside()).free()
    assert (reading.bytes, reading.doubtful) == (16 * GIB, True)
    assert "driver cannot be used: asking for it failed:" in reading.reason
