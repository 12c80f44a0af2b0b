"""The processor's int4 layout: made of every kind of packed weight, exact but for its scales' rounding, and undone."""

from __future__ import annotations

from random import Random

import pytest
import torch
from cases import HERE, packed4
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from truths import int4pack_weight

from mmswap.llm.ops import cpu_layout
from mmswap.llm.ops.cpu_layout import Int4Pack, arranged, codes, convert, dequantise, int4pack_bytes, why_not
from mmswap.llm.quant import Packed4, pack

BFLOAT16 = 2.0**-8
here = pytest.mark.skipif("int4pack" not in HERE, reason="torch has no fast int4 kernel for this processor")


def in_order(made: Int4Pack) -> Tensor:
    """float64 [out, in]: what the tensors of the layout say, by torch's own kernel, in the order of the inputs."""
    stored = int4pack_weight(made.packed, made.scale_zero, made.group_size)
    unit = arranged(torch.eye(made.in_features, dtype=torch.float64), made.order, stored.shape[1])
    return stored @ unit.t()


def assert_slots_are_right(weight: Packed4, stored: Tensor) -> None:
    """Slot by slot: one rounding of the scale, which all of |code - zero| is multiplied by, and one of the zero."""
    scales, zeros = (
        part.double().repeat_interleave(weight.group_size, 1)[:, : weight.slots]
        for part in (weight.scales, weight.zeros)
    )
    steps = weight.codes().double() - zeros
    off = (stored[:, : weight.slots] - steps * scales).abs()
    assert (off <= 1.01 * BFLOAT16 * scales * (steps.abs() + (8 - zeros).abs())).all()


@here
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from((16, 32, 48, 64, 80, 144)),
    st.sampled_from((8, 32, 40, 96, 100, 128, 200, 256, 300, 576)),
    st.sampled_from((32, 64, 128, 160, 256, 512, -1)),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_the_layout_holds_the_same_weight(out: int, columns: int, group: int, reorder: bool, seed: int) -> None:
    torch.manual_seed(seed)
    weight = packed4(out, columns, Random(seed), group=group, reorder=reorder)
    made = convert(weight)
    k = made.packed.shape[1] * 2
    assert made.nbytes == int4pack_bytes(out, weight.slots, weight.group_size, reordered=weight.order is not None)
    assert (made.in_features, k % made.group_size, weight.group_size % made.group_size) == (columns, 0, 0)
    assert_slots_are_right(weight, int4pack_weight(made.packed, made.scale_zero, made.group_size))
    off = (in_order(made) - weight.dequantise(torch.float64)).abs()
    assert (off <= BFLOAT16 * 24 * weight.scales.double().amax(1, keepdim=True)).all()
    assert torch.equal(dequantise(made.packed, made.scale_zero, made.group_size, torch.float32).double(), _stored(made))


def _stored(made: Int4Pack) -> Tensor:
    """What dequantise must give: float32 arithmetic on the codes."""
    scale, zero = (part.float().t().repeat_interleave(made.group_size, 1) for part in made.scale_zero.unbind(-1))
    return torch.addcmul(zero, codes(made.packed).float() - 8, scale).double()


@here
def test_symmetric_weights_lose_only_their_scales_rounding() -> None:
    weight = pack(torch.randint(0, 16, (16, 64), dtype=torch.uint8), torch.rand(16, 2).bfloat16(), group_size=32)
    assert torch.equal(in_order(convert(weight)), weight.dequantise(torch.float64))


@here
def test_groups_are_split_so_that_nothing_is_padded() -> None:
    """576 columns in groups of 128 are four and a half: nine of 64 take fewer bytes than five of 128."""
    made = convert(packed4(16, 576, Random(1), group=128))
    assert (made.group_size, made.packed.shape) == (64, (16, 288))
    assert convert(packed4(16, 1024, Random(1), group=-1)).group_size == 256
    assert convert(packed4(16, 80, Random(1), group=-1)).packed.shape == (16, 48)


@here
def test_bfloat16_is_rounded_once() -> None:
    made = convert(packed4(64, 256, Random(2)))
    exact = dequantise(made.packed, made.scale_zero, made.group_size, torch.float32)
    assert torch.equal(dequantise(made.packed, made.scale_zero, made.group_size, torch.bfloat16), exact.bfloat16())


@here
def test_empty_columns_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a re-ordered weight with half-empty groups: an input that is infinite must not reach what stands for 0."""
    groups = torch.tensor([1] * 40 + [0] * 30 + [2] * 30)
    weight = pack(
        torch.randint(0, 16, (16, 100), dtype=torch.uint8),
        torch.rand(16, 3),
        torch.randint(0, 16, (16, 3), dtype=torch.uint8),
        group_size=32,
        groups=groups,
    )
    made = convert(weight)
    assert made.order is not None
    assert int((made.order == 100).sum()) == len(made.order) - 100
    assert sorted(made.order.tolist())[:100] == list(range(100))
    x = torch.zeros(1, 100, dtype=torch.bfloat16)
    x[0, 0] = 3e4
    y = torch.ops.mmswap.int4pack(x, made.packed, made.scale_zero, made.order, None, 100, made.group_size)
    assert (y.double() - x.double() @ in_order(made).t()).abs().max() <= y.abs().max() * BFLOAT16


@here
def test_what_the_kernel_does_not_take_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(24, 64, 32) == "24 rows are no multiple of 16"
    assert why_not(32, 64, 16) == "groups of 16 columns are no multiple of 32"
    with pytest.raises(ValueError, match="24 rows"):
        convert(packed4(24, 64, Random(0)))
    with pytest.raises(ValueError, match="24 rows"):
        int4pack_bytes(24, 64, 32)
    monkeypatch.setattr(cpu_layout, "nibbles", lambda: None)
    assert "no fast int4 kernel" in str(why_not(32, 64, 32))


@here
def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversion and unpacking go piece by piece: where a piece ends must not show."""
    weight = packed4(208, 256, Random(5), group=64)
    whole = convert(weight)
    monkeypatch.setattr(cpu_layout, "_PIECE", 1)
    monkeypatch.setattr(cpu_layout, "_CODES", 1)
    small = convert(weight)
    assert torch.equal(whole.packed, small.packed)
    assert torch.equal(codes(small.packed), weight.codes())


@here
def test_the_reference_takes_what_the_kernel_is_slow_for() -> None:
    """float16 and float32 are no precision to be rounded away: they go to the reference, and are exact to their own."""
    from mmswap.llm.ops import resolve

    made = convert(packed4(32, 64, Random(7)))
    for dtype, name in ((torch.bfloat16, "cpu"), (torch.float16, "reference"), (torch.float32, "reference")):
        x = torch.randn(1, 64).to(dtype)
        found = resolve("int4pack", x, made.packed, made.scale_zero, made.order, None, 64, made.group_size)
        assert found.name == name


def packed_for(codes: Tensor, block: int, *, halves: bool) -> Tensor:
    """The orders that torch's source describes: AVX-512 and AVX2 halve blocks of 64 and 32, others pair neighbours."""
    parts = []
    for start in range(0, len(codes), block):
        part = codes[start : start + block].t()  # [k, rows]
        whole = halves and part.shape[1] == block
        low, high = part.chunk(2, 1) if whole else (part[:, 0::2], part[:, 1::2])
        parts.append((low | high << 4).flatten())
    return torch.cat(parts).view(len(codes), -1)


@pytest.mark.parametrize(
    ("block", "halves", "known"), [(64, True, 64), (32, True, 32), (64, False, None), (32, False, None)]
)
def test_the_order_of_other_processors(
    block: int, halves: bool, known: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AVX2's is taken apart like AVX-512's; where the kernel is slow, as on Windows, there is no layout at all."""
    monkeypatch.setattr(cpu_layout, "_converted", lambda codes: packed_for(codes, block, halves=halves))
    assert cpu_layout.nibbles.__wrapped__() == known
    monkeypatch.setattr(cpu_layout, "nibbles", lambda: known)
    weight = packed4(80, 256, Random(3), group=64)
    if known is None:
        assert why_not(80, 256, 64) is not None
    else:
        assert torch.equal(codes(convert(weight).packed), weight.codes())
