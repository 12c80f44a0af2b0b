"""The layout is what the kernels are told it is: checked code by code, for any shape, on any device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from mmswap.llm.quant import Packed4, pack, packed_bytes
from mmswap.llm.quant.layout import sizes

SHAPES = st.tuples(st.integers(1, 24), st.integers(1, 400), st.sampled_from([-1, 1, 7, 16, 32, 64, 96, 128, 256]))


def drawn(out: int, columns: int, group: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Packed4:
    random = torch.Generator().manual_seed(seed)
    groups = -(-columns // (group if group > 0 else columns))
    codes = torch.randint(0, 16, (out, columns), generator=random, dtype=torch.uint8)
    zeros = torch.randint(0, 16, (out, groups), generator=random, dtype=torch.uint8)
    scales = (torch.rand(out, groups, generator=random) + 0.5).to(dtype)
    return pack(codes, scales, zeros, group_size=group)


def one_weight(packed: Packed4, row: int, slot: int) -> float:
    """By the document: block of 128 columns, 16 words, nibble i holds column 32i + 2c and nibble i + 4 the next."""
    block, within = divmod(slot, 128)
    i, c, half = within // 32, within % 32 // 2, within % 2
    word = int(packed.words[row, block * 16 + c]) & 0xFFFFFFFF
    code = word >> (4 * (i + 4 * half)) & 15
    group = slot // packed.group_size
    return float(packed.scales[row, group]) * (code - int(packed.zeros[row, group]))


@pytest.mark.parametrize(("columns", "group"), [(128, 128), (256, 32), (200, 64), (77, -1), (130, 48)])
def test_every_code_is_where_the_kernels_look(columns: int, group: int) -> None:
    packed = drawn(3, columns, group)
    weight = packed.dequantise(torch.float64)
    for row in range(3):
        for slot in range(packed.padded):
            wanted = float(weight[row, slot]) if slot < columns else 0.0
            assert one_weight(packed, row, slot) == wanted, (row, slot)


def test_one_column_at_a_time() -> None:
    """The order of the nibbles, written out for a block of its own: column 1 is the fifth nibble of the first word."""
    for column, word, shift in ((0, 0, 0), (1, 0, 16), (2, 1, 0), (31, 15, 16), (32, 0, 4), (97, 0, 28), (127, 15, 28)):
        codes = torch.zeros(1, 128, dtype=torch.uint8)
        codes[0, column] = 15
        words = pack(codes, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.uint8), group_size=128).words
        wanted = np.zeros(16, np.uint32)
        wanted[word] = 15 << shift
        assert np.array_equal(words[0].numpy().view(np.uint32), wanted), column


def test_act_order_by_the_document() -> None:
    groups = torch.tensor([2, 0, 1, 0, 2, 1] * 16)
    codes = torch.randint(0, 16, (2, 96), dtype=torch.uint8)
    packed = pack(codes, torch.tensor([[1.0, 10.0, 100.0]] * 2), group_size=32, groups=groups)
    assert packed.order is not None
    assert sorted(packed.order.tolist()) == list(range(96))
    weight = packed.dequantise(torch.float64)
    for slot, column in enumerate(packed.order.tolist()):
        assert (
            one_weight(packed, 1, slot) == float(weight[1, column]) == 10.0 ** groups[column] * (codes[1, column] - 8.0)
        )


@settings(max_examples=80, deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 9))
def test_codes_come_back(shape: tuple[int, int, int], seed: int) -> None:
    out, columns, group = shape
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (out, columns), generator=random, dtype=torch.uint8)
    scales = torch.ones(out, -(-columns // (group if group > 0 else columns)))
    packed = pack(codes, scales, group_size=group)
    assert torch.equal(packed.codes(), codes)
    assert torch.equal(packed.dequantise(), codes.float() - 8)
    assert packed.words.stride(0) * 4 % 64 == 0


@settings(max_examples=80, deadline=None)
@given(columns=st.integers(1, 300), group=st.sampled_from([1, 16, 32, 100]), seed=st.integers(0, 999))
def test_any_group_map_comes_back(columns: int, group: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    count = -(-columns // group)
    groups = torch.randint(0, count, (columns,), generator=random)
    codes = torch.randint(0, 16, (3, columns), generator=random, dtype=torch.uint8)
    scales, zeros = torch.rand(3, count), torch.randint(0, 16, (3, count), dtype=torch.uint8)
    packed = pack(codes, scales, zeros, group_size=group, groups=groups)
    wanted = scales[:, groups] * (codes.float() - zeros[:, groups].float())
    assert torch.equal(packed.dequantise(), wanted)


@settings(max_examples=80, deadline=None)
@given(shape=SHAPES, dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_bytes_are_known_before(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    packed = drawn(*shape, dtype=dtype)
    assert packed.nbytes == packed_bytes(*shape, scale_bytes=dtype.itemsize)
    assert packed.nbytes == sum(tensor.untyped_storage().nbytes() for _, tensor in packed.tensors())


def test_bytes_with_an_order() -> None:
    groups = torch.arange(256).flip(0) // 64
    packed = pack(torch.zeros(8, 256, dtype=torch.uint8), torch.ones(8, 4).half(), group_size=64, groups=groups)
    assert packed.nbytes == packed_bytes(8, 256, 64, reordered=True) == 8 * (128 + 4 * 3) + 1024


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounded_once(dtype: torch.dtype) -> None:
    packed = drawn(5, 300, 64, torch.float32)  # scales that no 16-bit float holds
    assert torch.equal(packed.dequantise(dtype), packed.dequantise(torch.float64).to(dtype))


def test_weights_beyond_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = drawn(37, 130, 32)
    whole = packed.dequantise()
    monkeypatch.setattr("mmswap.llm.quant.layout._PIECE", 1000)  # three rows at a time
    torch.use_deterministic_algorithms(True)  # what is not written is NaN, and not by chance the values from before
    try:
        assert torch.equal(packed.dequantise(), whole)
    finally:
        torch.use_deterministic_algorithms(False)


def test_moves_take_every_tensor() -> None:
    groups = torch.arange(256).flip(0) // 64
    packed = pack(torch.zeros(8, 256, dtype=torch.uint8), torch.ones(8, 4).half(), group_size=64, groups=groups)
    moved = packed.to("meta")
    assert [name for name, _ in moved.tensors()] == ["words", "scales", "zeros", "order"]
    for (_, before), (name, after) in zip(packed.tensors(), moved.tensors()):
        assert after.is_meta, name
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
    assert (moved.in_features, moved.group_size, moved.nbytes) == (256, 64, packed.nbytes)
    assert moved.dequantise(torch.bfloat16).shape == (8, 256)


def test_dry_run_with_fake_tensors() -> None:
    packed = drawn(8, 256, 64)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        fake = Packed4(*(mode.from_tensor(tensor) for _, tensor in packed.tensors()), 256, 64)
        assert fake.dequantise(torch.float16).shape == (8, 256)


def test_sizes_of_rows() -> None:
    assert sizes(3584, 128) == (3584, 128, 28)
    assert sizes(3600, 128) == (3712, 128, 29)
    assert sizes(3600, -1) == (3712, 3712, 1)
    assert sizes(64, 128) == (128, 128, 1)
    assert sizes(64, 16) == (128, 16, 8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"zeros": torch.zeros(4, 2)},
        {"zeros": torch.zeros(4, 3, dtype=torch.uint8)},
        {"scales": torch.ones(3, 2).half()},
        {"scales": torch.ones(4, 2).double()},
        {"words": torch.zeros(4, 32)},
        {"words": torch.zeros(4, 48, dtype=torch.int32)},
        {"in_features": 257},
    ],
)
def test_tensors_that_do_not_belong_together(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(drawn(4, 256, 128), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, 2), (1, 1), (1, 3), (2,)])
def test_scales_of_another_weight(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="scales"):
        pack(torch.zeros(1, 4, dtype=torch.uint8), torch.ones(shape), group_size=2)


@pytest.mark.parametrize("groups", [[0, 0, 0, 2], [0, 0, 0, -1]])
def test_group_that_is_not_there(groups: list[int]) -> None:
    with pytest.raises(ValueError, match="scales"):
        pack(torch.zeros(1, 4, dtype=torch.uint8), torch.ones(1, 2), group_size=2, groups=torch.tensor(groups))
