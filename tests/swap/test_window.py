"""The window on the simulated card: what is lent is gone, what was lent comes back, and what was done is told."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from fingerprint import fingerprint
from swap_models import IDS, ToyDecoder, named_layers, tight_pool
from torch import nn

from mmswap.card import SimulatedCard
from mmswap.errors import WindowMisuse
from mmswap.swap import SwapPool
from mmswap.swap.window import State


def evicted_bytes(pool: SwapPool, count: int) -> int:
    return sum(unit.nbytes for unit in pool.ladder[:count])


@torch.no_grad()
def test_a_tight_card_lends_exactly_what_is_missing() -> None:
    model = ToyDecoder()
    pool = tight_pool(model, room=1000)
    before, logits = fingerprint(model, addresses=True), model(IDS)
    unit = pool.ladder[0].nbytes
    with pool.window(need=unit + 1001, margin=0.0) as window:
        assert window.state is State.OPEN
        assert model(IDS).isnan().any()  # evicted units are really gone
        assert [u.name for u in pool.units if u.missing] == ["layers.4", "layers.5"]
        assert pool.card.free().bytes == 1000 + 2 * unit
    assert window.state is State.CLOSED
    assert fingerprint(model, addresses=True) == before
    assert torch.equal(model(IDS), logits)
    report = window.report
    assert (report.opened, report.evicted, report.free) == (True, ("layers.5", "layers.4"), 1000)
    assert report.need == unit + 1001
    assert report.deficit == unit + 1
    assert report.evicted_bytes == report.restored_bytes == 2 * unit
    assert report.restore_ms > 0
    assert report.restore_hidden_ms == 0
    assert set(report.as_dict()) == {
        *("opened", "reason", "need", "free", "deficit", "evicted", "evicted_bytes", "restored_bytes"),
        *("restore_ms", "restore_hidden_ms", "spilled_bytes", "peak_measured"),
    }


@torch.no_grad()
def test_nothing_is_made_where_there_is_room() -> None:
    model = ToyDecoder()
    pool = SwapPool(named_layers(model), "sim:1GiB")
    logits = model(IDS)
    with pool.window(need=10_000) as window:
        assert torch.equal(model(IDS), logits)  # no poison
        assert fingerprint(model)["hooks"] == 0
    assert pool.mirrors.nbytes == 0
    assert not window.report.opened
    assert window.report.evicted == ()
    assert window.report.reason.startswith("Nothing is evicted because the encoder needs 10.3 KiB")


@torch.no_grad()
def test_layers_0_and_n() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    with pool.window(need=1 << 20, layers=0) as window:
        assert not model(IDS).isnan().any()
    assert window.plan.shortfall == window.plan.need > 0
    with pool.window(need=0, layers=3) as window:
        assert [u.name for u in pool.units if u.missing] == ["layers.3", "layers.4", "layers.5"]
    assert window.report.evicted_bytes == evicted_bytes(pool, 3)


@torch.no_grad()
def test_mirrors_are_made_once_per_unit() -> None:
    pool = tight_pool(ToyDecoder())
    with pool.window(layers=1):
        assert pool.mirrors.nbytes == evicted_bytes(pool, 1)
    first = pool.mirrors[pool.ladder[0]]
    with pool.window(layers=3):
        pass
    assert pool.mirrors[pool.ladder[0]] is first
    assert pool.mirrors.nbytes == evicted_bytes(pool, 3)
    pool.close()
    assert pool.mirrors.nbytes == 0


@torch.no_grad()
def test_spill_is_what_exceeds_lent_and_free_bytes() -> None:
    pool = tight_pool(ToyDecoder(), room=4096)
    big = 100 * 1024
    with pool.window(need=0, layers=0) as window:
        torch.zeros(big, dtype=torch.uint8)
    assert window.report.peak_measured == big
    assert window.report.spilled_bytes == big - 4096
    with pool.window(need=big, margin=0.0) as window:
        torch.zeros(big, dtype=torch.uint8)
    assert window.report.opened
    assert window.report.peak_measured == big
    assert window.report.spilled_bytes == 0


@torch.no_grad()
def test_two_live_halves_may_need_more_than_their_sum_in_lent_bytes() -> None:
    """The tensor that does not fit into the rest of the region grows beyond it, though live bytes would fit."""
    pool = tight_pool(ToyDecoder())
    lent = evicted_bytes(pool, 1) // 512 * 512
    with pool.window(layers=1) as window:
        first = torch.zeros(lent // 4 // 512 * 512, dtype=torch.uint8)
        second = torch.zeros(lent // 4 // 512 * 512, dtype=torch.uint8)
        third = torch.zeros(lent // 4 // 512 * 512, dtype=torch.uint8)
        del second
        torch.zeros(lent // 2 + 512, dtype=torch.uint8)
        del first, third
    assert window.report.peak_measured <= lent + 512
    assert window.report.spilled_bytes > 0


@torch.no_grad()
def test_claims_of_the_runtime_count() -> None:
    card = SimulatedCard("sim:10MiB")
    pool = SwapPool(named_layers(ToyDecoder()), card)
    assert card.free().bytes == (10 << 20) - pool.nbytes
    card.claim("kv cache", 9 << 20)
    with pool.window(need=2 << 20) as window:
        pass
    assert window.report.free == (1 << 20) - pool.nbytes
    assert window.report.opened
    pool.close()
    assert card.claims == {"kv cache": 9 << 20}


def test_a_forgotten_pool_gives_its_claim_back() -> None:
    card = SimulatedCard("sim:10MiB")
    SwapPool(named_layers(ToyDecoder()), card)
    gc.collect()
    assert card.claims == {}


@torch.no_grad()
def test_the_processor_has_nothing_to_lend_and_says_so() -> None:
    model = ToyDecoder()
    before = fingerprint(model, addresses=True)
    pool = SwapPool(named_layers(model), "cpu")
    with pool.window(need=1 << 60) as window:
        kept = window.keep([torch.ones(2)])
    assert torch.equal(kept[0], torch.ones(2))
    assert window.report.reason == "Nothing is evicted on cpu: nothing can be lent there."
    assert not window.report.opened
    assert fingerprint(model, addresses=True) == before
    pool.settle()


@torch.no_grad()
def test_keep_copies_out_of_the_window_and_does_not_count() -> None:
    pool = tight_pool(ToyDecoder())
    with pool.window(layers=1) as window:
        features = torch.randn(1000)
        kept = window.keep({"pooled": (features, [features[:3], "text"])})
    assert torch.equal(kept["pooled"][0], features)
    assert kept["pooled"][0].data_ptr() != features.data_ptr()
    assert kept["pooled"][1][1] == "text"
    assert window.report.peak_measured == 4000
    with pytest.raises(WindowMisuse, match="inside"):
        window.keep(features)


def test_need_may_be_a_function_of_the_lent_bytes() -> None:
    pool = tight_pool(ToyDecoder())
    asked: list[int] = []

    def need(lent: int) -> int:
        asked.append(lent)
        return 0 if lent >= 2 * pool.ladder[0].nbytes - 512 else 4096

    with pool.window(need=need, margin=0.0) as window:
        pass
    assert window.report.evicted == ("layers.5", "layers.4")
    assert asked[0] == 0


def test_misuse_is_one_sentence_each() -> None:
    pool = tight_pool(ToyDecoder())
    window = pool.window(layers=1)
    with pytest.raises(WindowMisuse, match="before"):
        _ = window.plan
    with window:
        with pytest.raises(WindowMisuse, match="already open in this thread"), pool.window():
            pass
        with pytest.raises(WindowMisuse, match="settle"):
            pool.settle()
        with pytest.raises(WindowMisuse, match="settle"):
            pool.close()
        with pytest.raises(WindowMisuse, match="one `with` block"):
            window.__enter__()
        assert window.state is State.OPEN
        assert pool.ladder[0].missing
    assert window.state is State.CLOSED
    with pytest.raises(WindowMisuse, match="one `with` block"), window:
        pass
    assert not pool.busy


def test_another_thread_waits_for_the_window() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    before = fingerprint(model)
    order: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with pool.window(layers=2):
            order.append("first in")
            entered.set()
            leave.wait()
            order.append("first out")

    def second() -> None:
        with pool.window(layers=3):
            order.append("second in")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["first in", "first out", "second in"]
    assert fingerprint(model) == before


def test_a_window_left_by_another_thread_still_restores() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    before = fingerprint(model)
    window = pool.window(layers=2)
    thread = threading.Thread(target=window.__enter__)
    thread.start()
    thread.join()
    with pytest.raises(WindowMisuse, match="thread that entered"):
        window.__exit__(None, None, None)
    assert fingerprint(model) == before
    assert not pool.busy


@torch.no_grad()
def test_300_windows_leave_no_trace() -> None:
    model = ToyDecoder(layers=3)
    pool = tight_pool(model)
    before = fingerprint(model, addresses=True)
    threads = threading.active_count()
    for index in range(300):
        with pool.window(layers=index % 4, overlap=index % 2 == 0):
            torch.randn(10 + index)
        model(IDS)
    pool.settle()
    assert fingerprint(model, addresses=True) == before
    assert pool.mirrors.nbytes == pool.nbytes
    assert threading.active_count() == threads
    assert len(pool.card.claims) == 1  # type: ignore[attr-defined]


def test_a_pool_of_parameterless_layers_or_of_none_is_harmless() -> None:
    for layers in ([], [nn.ReLU()]):
        pool = SwapPool(layers, "sim:1MiB")
        with pool.window(need=1 << 30) as window:
            pass
        assert window.report.evicted_bytes == 0
        assert window.plan.shortfall > 0
