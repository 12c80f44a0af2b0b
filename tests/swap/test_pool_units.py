"""Units: what moves into slabs, what is left where it is, and that nothing about a tensor changes but its address."""

from __future__ import annotations

import pytest
import torch
from fingerprint import fingerprint
from swap_models import IDS, OddBlock, ToyDecoder, named_layers, tight_pool
from torch import nn

from mmswap.errors import WindowMisuse
from mmswap.swap import SwapPool
from mmswap.swap.layout import ALIGN
from mmswap.swap.unit import survey


def test_moving_in_changes_nothing_but_addresses() -> None:
    model = ToyDecoder()
    before, logits = fingerprint(model), model(IDS)
    pool = tight_pool(model)
    assert fingerprint(model) == before
    assert torch.equal(model(IDS), logits)
    for unit in pool.units:
        assert unit.nbytes % ALIGN == 0
        assert all(slot.tensor.data_ptr() % ALIGN == 0 for slot in unit.slots)
        assert [text.partition(":")[0] for text in unit.left_out] == ["empty"]


def test_slabs_are_adjacent_in_ladder_order() -> None:
    pool = tight_pool(ToyDecoder())
    assert [unit.name for unit in pool.ladder] == [f"layers.{index}" for index in reversed(range(6))]
    assert pool.arena is not None
    ends = [slab.data_ptr() + slab.numel() for slab in pool.arena.slabs]
    assert ends[:-1] == [slab.data_ptr() for slab in pool.arena.slabs[1:]]
    assert [slab.numel() for slab in pool.arena.slabs] == [unit.nbytes for unit in pool.ladder]


def test_tied_tensors_lie_in_the_slab_once() -> None:
    block = OddBlock()
    (unit,) = survey([block])
    moved = {slot.name for slot in unit.slots}
    assert "first.weight" in moved
    assert "second.weight" not in moved  # the same Parameter
    once = sum(-(-t.numel() * t.element_size() // ALIGN) * ALIGN for t in [*block.parameters(), *block.buffers()])
    assert once <= unit.nbytes <= once + 4 * ALIGN


def test_overlapping_views_keep_their_relation() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(6, 4)
            self.whole = nn.Parameter(whole)
            self.top = nn.Parameter(self.whole.data[:3])
            self.column = nn.Parameter(self.whole.data[:, 1])

    model = nn.ModuleList([Fused(), nn.Linear(3, 3)])
    before = fingerprint(model)
    pool = SwapPool(list(model), "sim:1MiB")
    assert fingerprint(model) == before
    assert model[0].top.data_ptr() == model[0].whole.data_ptr()
    assert model[0].column.data_ptr() == model[0].whole.data_ptr() + 4
    with pool.window(layers=2):
        pass
    assert fingerprint(model) == before


def test_what_others_use_is_left_out() -> None:
    model = ToyDecoder()
    weight = model.embedding.weight
    address = weight.data_ptr()
    pool = SwapPool([*named_layers(model), ("head", model.head)], "sim:1MiB", root=model)
    head = pool.units[-1]
    assert (head.nbytes, head.left_out) == (0, ("weight: it is also used outside of the units",))
    assert model.head.weight is weight is model.embedding.weight
    assert weight.data_ptr() == address


def test_what_two_units_share_is_left_out() -> None:
    one, two = OddBlock(), OddBlock()
    two.up.weight = one.up.weight
    sliced = nn.Linear(2, 2)
    sliced.bias = nn.Parameter(one.up.bias.data[:2])  # another Parameter on the same bytes
    units = survey([("one", one), ("two", two), ("sliced", sliced)])
    assert "up.weight: several units use it" in units[0].left_out
    assert "up.bias: several units use it" in units[0].left_out
    assert units[2].left_out == ("bias: several units use it",)


def test_neighbours_in_one_storage_are_not_shared() -> None:
    """Checkpoints read by mmap give tensors of different layers that lie in one storage."""
    storage = torch.randn(8)
    one, two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    one.weight = nn.Parameter(storage[:4].view(2, 2))
    two.weight = nn.Parameter(storage[4:].view(2, 2))
    assert [unit.left_out for unit in survey([one, two])] == [(), ()]


def test_no_two_tensors_of_a_slab_look_tied() -> None:
    """An int64 at byte 2048 and a bool at byte 256 would both have element offset 256."""
    model = nn.ModuleList(OddBlock() for _ in range(3))
    SwapPool(list(model), "sim:1MiB")
    ties = [[f"{index}.first.weight", f"{index}.second.weight"] for index in range(3)]
    assert fingerprint(model)["same memory"] == ties


def test_subclasses_and_odd_layouts_stay() -> None:
    class Packed(torch.Tensor):
        pass

    layer = nn.Linear(2, 2)
    layer.register_buffer("packed", torch.zeros(3).as_subclass(Packed))
    layer.register_buffer("sparse", torch.eye(2).to_sparse())
    layer.register_buffer("conjugate", torch.zeros(2, dtype=torch.complex64).conj())
    (unit,) = survey([layer])
    assert {text.partition(":")[0] for text in unit.left_out} == {"packed", "sparse", "conjugate"}
    assert {slot.name for slot in unit.slots} == {"weight", "bias"}


def test_mistakes_in_the_layers_are_named() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="twice"):
        survey([("a", layer), ("b", layer)])
    with pytest.raises(ValueError, match="same name"):
        survey([("a", layer), ("a", nn.Linear(2, 2))])
    with pytest.raises(WindowMisuse, match="meta"):
        survey([nn.Linear(2, 2, device="meta")])
    with pytest.raises(ValueError, match="unit"):
        SwapPool([layer], "sim:1MiB", ladder=["unit.9"])


def test_units_that_the_ladder_leaves_out_are_untouched() -> None:
    model = ToyDecoder()
    address = model.layers[0].up.weight.data_ptr()
    pool = SwapPool(named_layers(model), "sim:1MiB", ladder=["layers.3", "layers.1"])
    assert [rung.name for rung in pool.rungs] == ["layers.3", "layers.1"]
    assert model.layers[0].up.weight.data_ptr() == address
    with pool.window(layers=9) as window:
        pass
    assert window.report.evicted == ("layers.3", "layers.1")


def test_inference_tensors_and_inference_mode() -> None:
    """Buffers made under inference_mode cannot be written outside of it: slabs are made outside, wherever we are."""
    with torch.inference_mode():
        model = ToyDecoder()
        pool = tight_pool(model)
        before = fingerprint(model)
        with pool.window(layers=3):
            pass
    with pool.window(layers=4):
        pass
    assert fingerprint(model) == before
    assert pool.arena is not None
    assert not any(slab.is_inference() for slab in pool.arena.slabs)


def test_replaced_weights_are_noticed() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    model.layers[5].up.weight = nn.Parameter(torch.zeros(64, 32))
    with pytest.raises(WindowMisuse, match="was replaced"), pool.window(layers=1):
        pass
    assert not pool.busy
    assert torch.equal(model.layers[5].up.weight, torch.zeros(64, 32))


def test_weights_written_since_the_mirror_was_made_come_back_as_written() -> None:
    model = ToyDecoder()
    pool = tight_pool(model)
    for value in (1.0, 2.0):
        with torch.no_grad():
            model.layers[5].up.weight.fill_(value)
        with pool.window(layers=1):
            pass
        assert torch.equal(model.layers[5].up.weight, torch.full((64, 32), value))
