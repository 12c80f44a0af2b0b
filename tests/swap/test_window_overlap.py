"""Restoring behind the computation: each unit is waited for on its own, and the waiting is what keeps results right."""

from __future__ import annotations

import pytest
import torch
from fingerprint import fingerprint
from swap_models import IDS, ToyDecoder, tight_pool

from mmswap.swap import restore
from mmswap.swap.restore import Restoration

SLOW = "@1MB/s"  # a unit of 26 KB takes 26 ms


@torch.no_grad()
def test_layers_wait_for_their_own_restore_and_part_of_it_is_hidden() -> None:
    model = ToyDecoder(layers=8)
    pool = tight_pool(model, link=SLOW)
    before, logits = fingerprint(model, addresses=True), model(IDS)
    with pool.window(layers=6, overlap=True) as window:
        pass
    missing = [unit.name for unit in pool.units if unit.missing]
    assert missing, "nothing was left to wait for"
    hidden = model.layers[0](model.embedding(IDS))
    for _ in range(40):  # the work of layers that were never away
        hidden = hidden @ torch.randn(32, 32)
        torch.randn(256, 256) @ torch.randn(256, 256)
    assert torch.equal(model(IDS), logits)
    assert fingerprint(model)["hooks"] == 0  # each went with its own unit
    pool.settle()
    report = window.report
    assert fingerprint(model, addresses=True) == before
    assert report.restored_bytes == report.evicted_bytes > 0
    assert report.restore_ms > 0
    assert 0 < report.restore_hidden_ms <= report.restore_ms


@torch.no_grad()
def test_units_come_back_in_order_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyDecoder(layers=5)
    pool = tight_pool(model)
    order: list[str] = []
    real = Restoration._restore

    def spy(self: Restoration, job: restore.Job) -> None:
        order.append(job.unit.name)
        real(self, job)

    monkeypatch.setattr(Restoration, "_restore", spy)
    with pool.window(layers=4, overlap=True):
        pass
    pool.settle()
    assert order == ["layers.1", "layers.2", "layers.3", "layers.4"]


@torch.no_grad()
def test_without_the_waits_the_result_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hooks are for: this fails to fail if units were not really gone."""
    model = ToyDecoder()
    pool = tight_pool(model, link=SLOW)
    monkeypatch.setattr(Restoration, "_install", lambda self: None)
    with pool.window(layers=5, overlap=True):
        pass
    assert model(IDS).isnan().any()
    pool.settle()
    assert not model(IDS).isnan().any()


@torch.no_grad()
def test_a_part_of_a_layer_that_is_called_on_its_own_waits_too() -> None:
    model = ToyDecoder()
    pool = tight_pool(model, link=SLOW)
    x = torch.randn(1, 32)
    expected = model.layers[5].up(x)
    with pool.window(layers=5, overlap=True):
        pass
    assert pool.units[5].missing
    assert torch.equal(model.layers[5].up(x), expected)


@torch.no_grad()
def test_the_next_window_waits_for_the_last_restore() -> None:
    model = ToyDecoder()
    pool = tight_pool(model, link=SLOW)
    before = fingerprint(model)
    for _ in range(3):
        with pool.window(layers=4, overlap=True):
            pass
        assert not pool.busy
    pool.settle()
    assert fingerprint(model) == before


@torch.no_grad()
def test_an_error_restores_at_once_even_with_overlap() -> None:
    model = ToyDecoder()
    pool = tight_pool(model, link=SLOW)
    before = fingerprint(model)
    with pytest.raises(ValueError), pool.window(layers=4, overlap=True):
        raise ValueError
    assert fingerprint(model) == before


def test_a_unit_that_is_lost_for_now_raises_instead_of_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmswap.swap.copier import HostCopier

    model = ToyDecoder()
    pool = tight_pool(model)

    def broken(*_: object) -> None:
        raise OSError("the link is down")

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(HostCopier, "copy", broken)
        patch.setattr(HostCopier, "copy_plainly", broken)
        with pool.window(layers=2, overlap=True):
            pass
        with pytest.raises(RuntimeError, match=r"layers\.4 could not be restored"):
            model(IDS)
        with pytest.raises(OSError, match="link"):
            pool.settle()
    pool.settle()
    assert not model(IDS).isnan().any()
