"""Budgets that move on a card behind `torch.cuda`: what a driver gives less is lent, and our own pins are no spill."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_cuda import FakeCuda
from fingerprint import fingerprint
from swap_models import ToyDecoder, named_layers

from mmswap.card import AcceleratorCard
from mmswap.card.outside import Outside
from mmswap.swap import SwapPool


def cuda_pool(fake: FakeCuda, model: ToyDecoder) -> SwapPool:
    return SwapPool(named_layers(model), AcceleratorCard(fake, 0, outside=Outside()), root=model)


def cut_after(fake: FakeCuda, calls: int, by: int) -> Callable[[], tuple[int, int]]:
    left = calls

    def driver() -> tuple[int, int]:
        nonlocal left
        left -= 1
        return max(0, fake.total - fake.reserved(0) - (by if left < 0 else 0)), fake.total

    return driver


@torch.no_grad()
def test_on_an_accelerator_more_is_lent_when_the_driver_gives_less(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(total=64 << 20)
    fake.install(monkeypatch)
    model = ToyDecoder(layers=8, width=512)
    before = fingerprint(model)
    pool = cuda_pool(fake, model)
    unit = pool.ladder[0].nbytes
    free = pool.free().bytes
    fake.driver = cut_after(fake, 1, by=2 * unit)
    with pool.window(need=free + unit // 2, margin=0.0) as window:
        pass
    assert len(window.report.evicted) == 3
    assert "free once placed" in window.report.reason
    pool.settle()
    assert fingerprint(model) == before


@torch.no_grad()
def test_pins_made_by_the_first_window_are_no_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux AMD: the mirrors are pinned at the first eviction, and amdgpu's GTT figure counts them."""
    fake = FakeCuda(total=64 << 20)
    fake.install(monkeypatch)
    gtt = 100 << 20
    outside = Outside()
    monkeypatch.setattr(Outside, "host_bytes", lambda _: (gtt + fake.pinned_bytes, "amdgpu sysfs"))
    model = ToyDecoder(layers=8, width=1024)
    pool = SwapPool(named_layers(model), AcceleratorCard(fake, 0, outside=outside), root=model)
    with pool.window(layers=8):
        pass
    pool.settle()
    assert fake.pinned_bytes > 20 << 20
    assert pool.watch.count().count == 0
    gtt += 40 << 20
    assert pool.watch.poll().bytes == 40 << 20
    assert "amdgpu sysfs" in pool.watch.news()[0]
    with pool.window(need=0) as window:
        pass
    assert len(window.report.evicted) == 1
