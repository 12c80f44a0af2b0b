"""The card's own code against a `torch.cuda` of nothing: addresses under the allocator's policy, order of the calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from fingerprint import fingerprint
from swap_models import IDS, ToyDecoder, named_layers, pool_on

from mmswap.swap import SwapPool
from mmswap.swap.cuda_arena import SMALLEST, AddressLost, CudaArena
from mmswap.swap.cuda_copier import StreamCopier
from mmswap.units import MIB


def addresses(fake: FakeCuda, pool: SwapPool) -> list[int]:
    assert pool.arena is not None
    return [fake.address(slab) for slab in pool.arena.slabs]


def test_slabs_lie_side_by_side_under_the_allocators_policy() -> None:
    for sizes in ([100, 5000, 3 * MIB], [SMALLEST] * 7, [40 * MIB + 512, 7, 21 * MIB], [MIB, MIB - 1, 2 * MIB + 1], []):
        fake = FakeCuda()
        arena = CudaArena(fake, 0, sizes)
        assert arena.adjacent
        assert [slab.numel() for slab in arena.slabs] == sizes
        assert arena.scratch() < 20 * MIB  # the tail of the one segment


@torch.no_grad()
def test_bytes_and_addresses_are_as_before(cuda: FakeCuda) -> None:
    model = ToyDecoder()
    before, logits = fingerprint(model), model(IDS)
    pool = pool_on(cuda, model)
    home = addresses(cuda, pool)
    for index in range(20):
        with pool.window(layers=index % 7) as window:
            work = [cuda.empty(size, 0) for size in (MIB + 512, 300_000, 2 * MIB)]
            missing = [unit for unit in pool.units if unit.missing]
            assert len(missing) == index % 7 if index % 7 < 7 else 6
            for unit in missing:
                assert all(slot.tensor.numel() == 0 for slot in unit.slots)
            del work
        assert addresses(cuda, pool) == home
        assert fingerprint(model) == before
        assert torch.equal(model(IDS), logits)
        assert window.report.restored_bytes == window.report.evicted_bytes


@torch.no_grad()
def test_what_runs_inside_lands_in_the_lent_bytes(cuda: FakeCuda) -> None:
    pool = pool_on(cuda, ToyDecoder())
    home = addresses(cuda, pool)
    reserved = cuda.reserved(0)
    with pool.window(layers=3) as window:
        big = cuda.empty(3 * SMALLEST, 0)  # more than any one slab: they merge
        assert cuda.address(big) == home[0]
        assert cuda.reserved(0) == reserved
        del big
    assert window.report.peak_measured == 3 * SMALLEST
    assert window.report.spilled_bytes == 0
    outside = cuda.empty(2 * MIB, 0)
    assert cuda.address(outside) >> 44 == 0  # the ordinary pool again


@torch.no_grad()
def test_a_slab_finds_its_place_although_other_free_blocks_fit_better(cuda: FakeCuda) -> None:
    """Best fit prefers the segments that the tower made beyond the lent bytes; they are held aside."""
    pool = pool_on(cuda, ToyDecoder())
    home = addresses(cuda, pool)
    with pool.window(layers=4):
        work = [cuda.empty(4 * SMALLEST, 0), *(cuda.empty(SMALLEST, 0) for _ in range(20))]
        del work
    assert addresses(cuda, pool) == home


@torch.no_grad()
def test_a_tensor_that_survives_in_lent_bytes_is_moved_out(cuda: FakeCuda) -> None:
    model = ToyDecoder()
    before = fingerprint(model)
    pool = pool_on(cuda, model)
    home = addresses(cuda, pool)
    with pool.window(layers=2):
        features = cuda.empty(2000, 0).fill_(7)  # small: another segment
        embeddings = cuda.empty(2 * MIB, 0).fill_(9)
        assert cuda.address(embeddings) == home[0]
        view = embeddings[5:10]
    assert addresses(cuda, pool) == home
    assert cuda.address(embeddings) not in home
    assert cuda.address(embeddings) >> 44 == 0
    assert bool((embeddings == 9).all())
    assert bool((features == 7).all())
    assert view.data_ptr() == embeddings.data_ptr() + 5
    assert "clear workspaces" in cuda.log
    assert fingerprint(model) == before


@torch.no_grad()
def test_an_address_that_cannot_be_had_is_said_and_the_bytes_come_back(cuda: FakeCuda) -> None:
    model = ToyDecoder()
    before, logits = fingerprint(model), model(IDS)
    pool = pool_on(cuda, model)
    with pytest.raises(AddressLost, match=r"1 of 2 evicted units.*keep"), pool.window(layers=2):
        block = cuda.pools[cuda.current].malloc(MIB + 512)  # a library's own, that no Python object knows
    assert fingerprint(model) == before
    assert torch.equal(model(IDS), logits)
    home = addresses(cuda, pool)
    with pool.window(layers=2):
        pass
    assert addresses(cuda, pool) == home
    cuda.pools[1].free(block)


@torch.no_grad()
def test_keep_copies_from_the_ordinary_pool(cuda: FakeCuda) -> None:
    pool = pool_on(cuda, ToyDecoder())
    with pool.window(layers=2) as window:
        depth = cuda.current
        cuda.log.clear()
        window.keep([torch.ones(3)])
        assert cuda.log == ["pool off", "pool on"]
        assert cuda.current == depth == 1
    assert cuda.current == 0


@torch.no_grad()
def test_the_order_of_one_overlapped_window(cuda: FakeCuda) -> None:
    model = ToyDecoder(layers=3)
    logits = model(IDS)
    pool = pool_on(cuda, model)
    with pool.window(layers=2, overlap=True):
        inside = cuda.log[:]
        cuda.log.clear()
    assert inside[-5:] == ["warm", "synchronize", "give up", "give up", "pool on"]
    tail = [line for line in cuda.log if line not in ("pool on", "pool off")]
    assert tail == [
        *("synchronize", "take", "take"),
        *("record main", "side 1 waits for main", "record side 1"),  # the lent bytes are done with
        *("copy on side 1", "record side 1", "copy on side 1", "record side 1"),
    ]
    assert pool.units[1].slots[0].tensor.numel() > 0  # bound already, and not yet there
    cuda.log.clear()
    assert torch.equal(model(IDS), logits)
    assert cuda.log == ["record main", "main waits for side 1", "record main"] * 2  # each layer for its own copy
    pool.settle()
    assert fingerprint(model)["hooks"] == 0


@torch.no_grad()
def test_without_the_events_the_copy_is_not_seen(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyDecoder(layers=3)
    logits = model(IDS)
    pool = pool_on(cuda, model)
    monkeypatch.setattr(StreamCopier, "wait", lambda self, unit: None)
    with pool.window(layers=2, overlap=True):
        pass
    for slab in pool.arena.slabs[:2] if pool.arena else []:
        slab.fill_(0xFF)
    assert not torch.equal(model(IDS), logits)


@torch.no_grad()
def test_units_that_are_on_a_full_card_go_through_the_host(cuda: FakeCuda) -> None:
    model = ToyDecoder()
    before = fingerprint(model)
    cuda.driver = lambda: (1000, cuda.total)
    pool = pool_on(cuda, model)
    assert fingerprint(model) == before
    with pool.window(layers=6):
        pass
    assert fingerprint(model) == before


@torch.no_grad()
def test_free_leaves_out_what_only_the_pool_can_use(cuda: FakeCuda) -> None:
    pool = pool_on(cuda, ToyDecoder())
    card = pool.card
    before = card.free().bytes
    assert pool.arena is not None
    idle = pool.arena.scratch()
    with pool.window(layers=1):
        cuda.empty(50 * MIB, 0)
    assert pool.arena.scratch() == idle + 50 * MIB
    assert card.free().bytes == before - 50 * MIB
    with pool.window(need=0) as window:
        pass
    assert window.report.free == before - 50 * MIB + idle + 50 * MIB


@torch.no_grad()
def test_an_error_inside_and_a_failing_copy(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyDecoder()
    before = fingerprint(model)
    pool = pool_on(cuda, model)
    home = addresses(cuda, pool)
    with pytest.raises(KeyboardInterrupt), pool.window(layers=4, overlap=True):
        raise KeyboardInterrupt
    assert fingerprint(model) == before
    calls: list[int] = []
    real = StreamCopier.copy

    def second_fails(self: StreamCopier, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("copy 2 of 4")
        real(self, *args)

    monkeypatch.setattr(StreamCopier, "copy", second_fails)
    with pytest.raises(RuntimeError, match="copy 2"), pool.window(layers=4):
        pass
    assert fingerprint(model) == before
    assert addresses(cuda, pool) == home
    assert cuda.current == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
@torch.no_grad()
def test_on_a_real_card() -> None:
    model = ToyDecoder()
    logits = model(IDS)
    pool = SwapPool(named_layers(model), "cuda", root=model)
    model.to("cuda")
    before, ids = fingerprint(model, addresses=True), IDS.cuda()
    expected = model(ids)
    torch.testing.assert_close(expected.cpu(), logits, atol=1e-3, rtol=1e-3)
    for index in range(100):
        with pool.window(layers=1 + index % 6, overlap=index % 2 == 0):
            features = torch.randn(512, 1024, device="cuda") @ torch.randn(1024, 512, device="cuda")
        assert torch.equal(model(ids), expected)
        assert features.isfinite().all()
        pool.settle()
        assert fingerprint(model, addresses=True) == before
