"""Mirrors of a real card: pinned at their exact size, pageable where that fails or costs, and released."""

from __future__ import annotations

import logging

import pytest
import torch
from fake_cuda import FakeCuda
from fingerprint import fingerprint
from swap_models import ToyDecoder, pool_on

from mmswap.swap.cuda_copier import RingCopier
from mmswap.swap.pinning import PinnedHost


@torch.no_grad()
@pytest.mark.parametrize("limit", [None, 0, 60_000])
def test_pinning_fails_at_once_or_after_a_while(
    limit: int | None, cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    model = ToyDecoder()
    before = fingerprint(model)
    cuda.pin_limit = limit
    pool = pool_on(cuda, model)
    with caplog.at_level(logging.WARNING):
        for overlap in (False, True):
            with pool.window(layers=5, overlap=overlap):
                pass
            pool.settle()
            assert fingerprint(model) == before
    assert len(caplog.records) == (0 if limit is None else 1)
    assert ("probe" in cuda.log) == (limit is not None)  # the late error is consumed
    assert cuda.pinned_bytes <= 6 * 60_000 if limit is None else cuda.pinned_bytes <= limit
    pool.close()
    assert cuda.pinned_bytes == 0


def test_pinned_memory_is_capped_and_exact() -> None:
    fake = FakeCuda()
    host = PinnedHost(fake, 0, limit=3 * 4096)
    first = host.allocate(5000)
    assert (first.numel(), fake.pinned_bytes) == (5000, 8192)
    assert first.data_ptr() % 4096 == 0
    assert host.complete
    assert host.allocate(5000).numel() == 5000
    assert fake.pinned_bytes == 8192
    assert not host.complete
    del host, first
    assert fake.pinned_bytes == 0


@torch.no_grad()
def test_windows_keeps_mirrors_pageable_behind_a_small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(windows=True)
    fake.install(monkeypatch)
    model = ToyDecoder()
    before = fingerprint(model)
    pool = pool_on(fake, model)
    assert isinstance(pool.copier, RingCopier)
    assert fake.log.count("pinned buffer") == 2
    pool.copier = RingCopier(fake, 0, ring=1000)
    for overlap in (False, True):
        fake.log.clear()
        with pool.window(layers=3, overlap=overlap):
            pass
        pool.settle()
        assert fingerprint(model) == before
        assert fake.log.count("copy on side 2") == 3 * -(-pool.ladder[0].nbytes // 1000)
        assert "pinned buffer" not in fake.log  # never while a window is open
    assert fake.pinned_bytes == 0
