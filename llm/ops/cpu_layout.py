"""The processor's int4 layout, which torch's `_weight_int4pack_mm_for_cpu` reads: made of a `Packed4` and taken apart.

    pack = convert(packed4)
    y = torch.ops.mmswap.int4pack(x, pack.packed, pack.scale_zero, pack.order, None, pack.in_features, pack.group_size)

Weights are W[o, c] = (code - 8) scale + zero with bfloat16 scale and zero. How torch orders the codes depends on the
processor, so the layout is made at load, never saved; `nibbles` finds the order by asking torch. Knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.ops.schema import INT4PACK_GROUPS
from mmswap.llm.quant.layout import MIDDLE, Packed4

ROWS = 16
"""torch takes rows in whole multiples of this."""

BLOCK = 64
"""Rows that lie together at the most, whatever the processor: layouts of so many rows may follow each other."""

_PIECE = 1 << 22  # codes that are widened to int32 at a time
_CODES = 1 << 17  # codes that are taken apart at a time: they stay in the processor's cache


@dataclass(frozen=True, slots=True, eq=False)
class Int4Pack:
    """A weight [out, in] for the processor, with k >= in columns in whole groups.

    Attributes:
        packed: uint8 [out, k / 2].
        scale_zero: bfloat16 [k / group_size, out, 2].
        order: None, or int32 [k]: column c takes x[order[c]], and order[c] = in_features stands for 0.
    """

    packed: Tensor
    scale_zero: Tensor
    order: Tensor | None
    in_features: int
    group_size: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.packed.nbytes + self.scale_zero.nbytes + (0 if self.order is None else self.order.nbytes)


def why_not(out_features: int, slots: int, group_size: int) -> str | None:
    """Why there is no such layout of a `Packed4` of this shape; None when there is."""
    if out_features % ROWS:
        return f"{out_features} rows are no multiple of {ROWS}"
    if _group(slots, group_size) is None:
        return f"groups of {group_size} columns are no multiple of {min(INT4PACK_GROUPS)}"
    if nibbles() is None:
        return "torch has no fast int4 kernel for this processor or system"
    return None


def int4pack_bytes(out_features: int, slots: int, group_size: int, *, reordered: bool = False) -> int:
    """Bytes of an `Int4Pack`, before there is one.

    Raises:
        ValueError: there is no such layout.
    """
    group = _group(slots, group_size)
    if group is None or out_features % ROWS:
        raise ValueError(why_not(out_features, slots, group_size))
    k = _columns(slots, group)
    return _row_bytes(k, group) * out_features + (4 * k if reordered else 0)


def convert(weight: Packed4) -> Int4Pack:
    """The same weight; scales and zeros are rounded to bfloat16. Groups are split where that saves bytes.

    Beside the result it takes a few times 16 MiB, however large the weight is.

    Raises:
        ValueError: there is no such layout (`why_not`).
    """
    why = why_not(weight.out_features, weight.slots, weight.group_size)
    group = _group(weight.slots, weight.group_size)
    if why is not None or group is None:
        raise ValueError(f"this weight has no layout for the processor: {why}.")
    out, k = weight.out_features, _columns(weight.slots, group)
    packed = torch.empty(out, k // 2, dtype=torch.uint8, device=weight.words.device)
    for rows in _pieces(out, weight.padded):
        codes = functional.pad(_rows(weight, rows).codes(), (0, k - weight.slots), value=MIDDLE)
        packed[rows] = _converted(codes)
    scales, zeros = (_by_group(tensor, weight.group_size, group, k) for tensor in (weight.scales, weight.zeros))
    scales = scales.to(torch.bfloat16)
    shift = ((MIDDLE - zeros.float()) * scales.float()).to(torch.bfloat16)
    return Int4Pack(packed, torch.stack((scales, shift), -1), _order(weight, k), weight.in_features, group)


def arranged(x: Tensor, order: Tensor | None, k: int) -> Tensor:
    """[..., in] -> [..., k]: x as the columns of the weight stand, 0 where none of its features belongs."""
    if x.shape[-1] != k:
        x = functional.pad(x, (0, 1 if order is not None else k - x.shape[-1]))
    return x if order is None else x.index_select(-1, order)


def dequantise(packed: Tensor, scale_zero: Tensor, group_size: int, dtype: torch.dtype) -> Tensor:
    """The weight [out, k] (its columns lie next to one another): computed in float32, rounded once to `dtype`.

    Beside the result it takes a few MiB.
    """
    out, k = packed.shape[0], packed.shape[1] * 2
    weight = torch.empty(k, out, dtype=dtype, device=packed.device)
    for start, stop, block in _runs(out, nibbles()):
        scales, zeros = (part[:, start:stop].float().unsqueeze(1) for part in scale_zero.unbind(-1))
        step = max(1, _CODES // (group_size * (stop - start))) * group_size
        numbers = torch.empty(min(step, k), stop - start, device=packed.device)
        for first in range(0, k, step):
            columns, groups = slice(first, first + step), slice(first // group_size, (first + step) // group_size)
            part = numbers[: k - first]
            low, high = _nibbles_of(packed[start:stop], columns, block)
            _spread(low.sub_(MIDDLE).view(torch.int8), high.sub_(MIDDLE).view(torch.int8), block, into=part)
            grouped = part.view(-1, group_size, stop - start)
            torch.addcmul(zeros[groups], grouped, scales[groups], out=grouped)
            weight[columns, start:stop] = part
    return weight.t()


def codes(packed: Tensor, block: int | None = None) -> Tensor:
    """uint8 [out, k] of 0..15: what was packed. `block`: rows of a block, None for this processor's."""
    k = packed.shape[1] * 2
    result = torch.empty(k, len(packed), dtype=torch.uint8, device=packed.device)
    for start, stop, size in _runs(len(packed), block or nibbles()):
        part = torch.empty(k, stop - start, dtype=torch.uint8, device=packed.device)
        _spread(*_nibbles_of(packed[start:stop], slice(0, k), size), size, into=part)
        result[:, start:stop] = part
    return result.t().contiguous()


def _runs(out: int, block: int | None) -> Iterator[tuple[int, int, int | None]]:
    """Rows from and to, and of how many a block is; None for those that are left over."""
    assert block is not None
    whole = out // block * block
    if whole:
        yield 0, whole, block
    if whole < out:
        yield whole, out, None


def _nibbles_of(packed: Tensor, columns: slice, block: int | None) -> tuple[Tensor, Tensor]:
    """uint8 [columns, blocks, b / 2] twice: low and high, of a run of rows."""
    half = (block or len(packed)) // 2
    octets = packed.reshape(-1, packed.shape[1] * 2, half).transpose(0, 1)[columns].contiguous()
    return octets & 15, octets >> 4


def _spread(low: Tensor, high: Tensor, block: int | None, *, into: Tensor) -> None:
    """Both into [columns, rows], each where its rows are: the halves of a block, or turn by turn."""
    columns, _, half = low.shape
    places = into.view(columns, -1, 2, half) if block else into.view(columns, 1, half, 2).transpose(2, 3)
    places[:, :, 0], places[:, :, 1] = low, high


@cache
def nibbles() -> int | None:
    """Rows of a block in torch's order on this processor; None where the order is none that a fast kernel has.

    In a block of b rows byte j of a column holds row j low and row b / 2 + j high; in the rows that are left over, 2j
    low and 2j + 1 high. Where a kernel reads byte by byte (Windows, other processors) all rows are as those left over.
    """
    if not hasattr(torch, "_weight_int4pack_mm_for_cpu"):
        return None
    for block in (64, 32):
        given = [(torch.arange(rows * 32) * 7 // 3 % 16).view(rows, 32) for rows in range(16, 2 * block + 1, 16)]
        if all(torch.equal(codes(_converted(table), block), table) for table in given):
            return block
    return None


def _converted(codes: Tensor) -> Tensor:
    """uint8 [rows, k] -> uint8 [rows, k / 2], by torch."""
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)  # type: ignore[no-any-return]


def _group(slots: int, group_size: int) -> int | None:
    """The group that takes the fewest bytes: a divisor of the weight's own."""
    fitting = [group for group in INT4PACK_GROUPS if group_size % group == 0]
    return min(fitting, key=lambda group: _row_bytes(_columns(slots, group), group), default=None)


def _columns(slots: int, group: int) -> int:
    return -(-slots // group) * group


def _row_bytes(k: int, group: int) -> int:
    return k // 2 + k // group * 4


def _by_group(values: Tensor, wide: int, group: int, k: int) -> Tensor:
    """[out, groups] -> [k / group, out], of groups that are split."""
    return values.t().repeat_interleave(wide // group, 0)[: k // group]


def _order(weight: Packed4, k: int) -> Tensor | None:
    """Slots that hold nothing point past the last input; those of 0 for every row are such, or may be."""
    order, inputs = weight.order, weight.in_features
    if order is None or k == inputs:
        return order
    first = order.eq(0).nonzero().flatten()  # the slot of column 0, and the empty ones
    held = torch.cat([_codes_at(weight, rows, first) for rows in _pieces(weight.out_features, weight.padded)])
    empty = first[(held == weight.zeros[:, first // weight.group_size]).all(0)]
    return functional.pad(order.index_fill(0, empty, inputs), (0, k - order.shape[0]), value=inputs)


def _codes_at(weight: Packed4, rows: slice, slots: Tensor) -> Tensor:
    return _rows(weight, rows).codes().index_select(1, slots)


def _rows(weight: Packed4, rows: slice) -> Packed4:
    parts = (weight.words[rows], weight.scales[rows], weight.zeros[rows])
    return Packed4(*parts, weight.in_features, weight.group_size, weight.order)


def _pieces(out: int, padded: int) -> Iterator[slice]:
    step = max(1, _PIECE // (padded * 64)) * 64
    return (slice(start, min(start + step, out)) for start in range(0, out, step))
