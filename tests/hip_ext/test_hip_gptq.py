"""mms_gptq_shuffle makes of a checkpoint's tensors what `llm/quant/gptq.py` makes of them, bit for bit."""

from __future__ import annotations

from random import Random

import pytest
import torch
from native import native_library, start
from torch import Tensor
from torch.nn import functional

from mmswap.hip_ext import backend
from mmswap.hip_ext.launching import CODES
from mmswap.hip_ext.library import Library
from mmswap.llm.ops import reference
from mmswap.llm.quant.columns import arrange
from mmswap.llm.quant.layout import Packed4, pack, sizes

from cases import DTYPES, draw  # isort: skip

CODE = torch.arange(8, dtype=torch.int32) * 4


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Library:
    return native_library(tmp_path_factory, monkeypatch)


def words(codes: Tensor) -> Tensor:
    """uint8 [..., n] -> int32 [..., ceil(n / 8)]: nibble j of word w is code 8w + j."""
    codes = functional.pad(codes, (0, -codes.shape[-1] % 8)).unflatten(-1, (-1, 8)).long()
    return (codes << CODE.long()).sum(-1).to(torch.int64).bitwise_and(0xFFFFFFFF).to(torch.uint32).view(torch.int32)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["stored", "less one", "symmetric"])
@pytest.mark.parametrize("order", ["none", "columns", "uneven"])
@pytest.mark.parametrize(
    ("outputs", "columns", "group", "dtype"),
    [
        (24, 256, 128, torch.float16),
        (67, 200, 32, torch.bfloat16),
        (8, 136, 16, torch.float32),
        (5, 392, 392, torch.float16),
    ],
)
def test_a_checkpoint_becomes_the_layout(
    library: Library, outputs: int, columns: int, group: int, dtype: torch.dtype, order: str, mode: int
) -> None:
    """Sorted groups, act-order, groups of uneven sizes; rows of whole blocks and not; words of outputs cut short."""
    torch.manual_seed(outputs + mode)
    count = -(-columns // group)
    codes = torch.randint(0, 16, (outputs, columns), dtype=torch.uint8)
    zeros = torch.randint(0, 16, (outputs, count), dtype=torch.uint8)
    scales = torch.rand(outputs, count).to(dtype)
    groups = torch.arange(columns) // group
    if order != "none":
        groups = groups[torch.randperm(columns)] if order == "columns" else torch.randint(0, count, (columns,))
    points = torch.full_like(zeros, 8) if mode == 2 else zeros
    want = pack(codes, scales, points, group_size=group, groups=groups)
    placed = arrange(groups, group)
    padded, size, stored = sizes(len(placed.slots), group)
    source = functional.pad(placed.slots, (0, padded - len(placed.slots)), value=-1).to(torch.int32)
    got = Packed4(
        torch.full((outputs, padded // 8), -1, dtype=torch.int32),
        torch.full((outputs, stored), torch.nan, dtype=dtype),
        torch.full((outputs, stored), 255, dtype=torch.uint8),
        columns,
        size,
        want.order,
    )
    start(
        library,
        "mms_gptq_shuffle",
        "mms_gptq",
        qweight=words(codes.t().contiguous().t()).t().contiguous(),
        qzeros=words(((zeros - 1) & 15 if mode == 1 else zeros).t()),
        scales=scales.t().contiguous(),
        source=source if placed.reordered else None,
        table=placed.table.to(torch.int32) if placed.reordered else None,
        words=got.words,
        scales_out=got.scales,
        zeros_out=got.zeros,
        columns=columns,
        outputs=outputs,
        padded=padded,
        group_size=size,
        groups_in=count,
        groups_out=stored,
        stored=len(placed.table),
        scale_dtype=CODES[dtype],
        zero_mode=mode,
    )
    assert torch.equal(got.words, want.words)
    assert torch.equal(got.scales, want.scales)
    assert torch.equal(got.zeros, want.zeros)


def test_the_op_is_the_references_bit_for_bit(library: Library) -> None:
    """A slot without a column holds its group's zero point, and a group past the last is 0."""
    own = backend.IMPLEMENTATIONS["gptq_shuffle"]
    taken = 0
    for seed in range(120):
        arguments = draw("gptq_shuffle", DTYPES[seed % 3], Random(f"shuffle {seed}"), views=seed % 4 == 0)
        if own.refuses(*arguments) is None:
            taken += 1
            made, want = own.run(*arguments), reference.gptq_shuffle(*arguments)
            assert all(torch.equal(one, other) for one, other in zip(made, want, strict=True)), seed
    assert taken > 80
