"""The one int4 layout in which quantised weights are kept ("W4A16"), and its specification in plain torch.

    W[o, column of slot s] = scales[o, s // group_size] * (code[o, s] - zeros[o, s // group_size])

`pack(codes, scales, zeros, group_size=128)` makes a `Packed4`, `Packed4.dequantise()` is what every kernel must agree
with. Knows no checkpoint format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mmswap.llm.quant.bits import BLOCK, from_blocks, to_blocks
from mmswap.llm.quant.columns import arrange

SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIDDLE = 8
"""The zero point of a symmetric weight: codes 0..15 stand for -8..7."""

_PIECE = 1 << 22  # weights that are unpacked at a time: 16 MiB of float32


@dataclass(frozen=True, slots=True, eq=False)
class Packed4:
    """A weight [out, in] in 4 bits. Rows are outputs; all tensors are contiguous and on one device.

    Attributes:
        words: int32 [out, padded / 8], the codes 0..15. `padded` is the number of slots rounded up to 128. Order of the
            nibbles: `bits.to_blocks`. It is the same for every group size. A row begins at a multiple of 64 bytes.
        scales: [out, groups] in the dtype of the checkpoint (float16, bfloat16, float32): scales of 2e-8 are real, and
            float16 would lose them. `groups` is ceil(padded / group_size).
        zeros: uint8 [out, groups] of 0..15. Symmetric weights have 8 everywhere.
        in_features: columns of the weight. Slots past the last column, and those that no column needs, hold their
            group's zero point: they stand for 0. Groups that lie past the last column have scale 0.
        group_size: slots that share a scale. One scale a row: `padded`.
        order: None, or int32 [slots] when the columns are stored re-ordered (act-order): slot s takes the input
            `x[order[s]]`. An empty slot points at column 0.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    in_features: int
    group_size: int
    order: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError: tensors that do not belong together."""
        if self.words.dim() != 2:
            raise ValueError(f"words of shape {list(self.words.shape)} are no weight: is it evicted?")
        out, groups = self.words.shape[0], -(-self.padded // self.group_size)
        if self.words.dtype != torch.int32 or self.zeros.dtype != torch.uint8 or self.scales.dtype not in SCALE_DTYPES:
            raise ValueError(
                f"{self.words.dtype}, {self.scales.dtype}, {self.zeros.dtype} are no words, scales, zeros."
            )
        if self.scales.shape != (out, groups) or self.zeros.shape != (out, groups):
            raise ValueError(
                f"scales {tuple(self.scales.shape)} and zeros {tuple(self.zeros.shape)} are not those of "
                f"{out} rows with {groups} groups."
            )
        if self.padded != -(-self.slots // BLOCK) * BLOCK:
            raise ValueError(f"{self.slots} slots do not fill {self.padded} columns.")

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return self.words.shape[0]

    @property
    def padded(self) -> int:
        """Codes that a row holds."""
        return self.words.shape[1] * 8

    @property
    def slots(self) -> int:
        """Codes of a row that a kernel must look at; those after them stand for 0."""
        return self.in_features if self.order is None else self.order.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for _, tensor in self.tensors())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its name."""
        yield from (("words", self.words), ("scales", self.scales), ("zeros", self.zeros))
        if self.order is not None:
            yield "order", self.order

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Packed4:
        """The same weight with every tensor on `device`; dtypes stay."""
        moved = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.tensors()}
        return Packed4(
            moved["words"], moved["scales"], moved["zeros"], self.in_features, self.group_size, moved.get("order")
        )

    def codes(self) -> Tensor:
        """uint8 [out, slots], the codes 0..15 in the order in which they are stored."""
        return from_blocks(self.words)[:, : self.slots]

    def dequantise(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in] in the order of its inputs: computed in float32 (float64 for that), rounded once.

        Beside the result it takes a few times 16 MiB, however large the weight is.
        """
        weight = torch.empty(self.out_features, self.in_features, dtype=dtype, device=self.words.device)
        step = max(1, _PIECE // self.padded)
        for start in range(0, self.out_features, step):
            rows = slice(start, start + step)
            weight[rows] = self._unpacked(rows, torch.float64 if dtype == torch.float64 else torch.float32)
        return weight

    def _unpacked(self, rows: slice, dtype: torch.dtype) -> Tensor:
        codes = from_blocks(self.words[rows])[:, : self.slots].to(dtype)
        zeros, scales = (self._by_slot(tensor[rows]).to(dtype) for tensor in (self.zeros, self.scales))
        stored = codes.sub_(zeros).mul_(scales)
        if self.order is None:
            return stored
        # Added and not assigned: column 0 is named by the empty slots too, which hold 0.
        return stored.new_zeros(stored.shape[0], self.in_features).index_add_(1, self.order, stored)

    def _by_slot(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self.group_size, 1)[:, : self.slots]


def pack(
    codes: Tensor, scales: Tensor, zeros: Tensor | None = None, *, group_size: int, groups: Tensor | None = None
) -> Packed4:
    """A `Packed4` of codes in the order of their inputs.

    Args:
        codes: uint8 [out, in] of 0..15.
        scales: [out, g], float16, bfloat16 or float32.
        zeros: uint8 [out, g] of 0..15; None: 8, symmetric.
        group_size: columns that share a scale; -1: the whole row.
        groups: int [in], the scale of each column; None: consecutive groups.

    Raises:
        ValueError: shapes that do not belong together.
    """
    out, columns = codes.shape
    whole = group_size if group_size > 0 else columns
    wrong = scales.dim() != 2 or scales.shape[0] != out
    if groups is None:
        wrong = wrong or scales.shape[1] != -(-columns // whole)
        groups = torch.arange(columns, device=codes.device) // whole
    if wrong or int(groups.max()) >= scales.shape[1] or int(groups.min()) < 0:
        raise ValueError(f"scales {tuple(scales.shape)} are not those of codes {tuple(codes.shape)}.")
    zeros = torch.full(scales.shape, MIDDLE, dtype=torch.uint8, device=codes.device) if zeros is None else zeros
    placed = arrange(groups.long(), whole)
    padded, group, _ = sizes(len(placed.slots), whole)
    source = functional.pad(placed.slots, (0, padded - len(placed.slots)), value=-1) if placed.reordered else None
    words, scales, zeros = laid(codes, scales, zeros, source, placed.table, padded, group)
    order = placed.slots.clamp(min=0).to(torch.int32) if placed.reordered else None
    return Packed4(words, scales, zeros, columns, group, order)


def laid(
    codes: Tensor, scales: Tensor, zeros: Tensor, source: Tensor | None, table: Tensor | None, padded: int, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """words, scales and zeros of a `Packed4`.

    Args:
        source: [padded], the column in each slot, -1 for none; None: slot s is column s.
        table: [stored], the scale of each stored group; None: itself.
        group: slots that share a scale.
    """
    columns, count = codes.shape[1], -(-padded // group)
    chosen = [values if table is None else values.index_select(1, table) for values in (scales, zeros)]
    wide, points = (functional.pad(values, (0, count - values.shape[1])) for values in chosen)
    if source is None:
        stored, empty = functional.pad(codes, (0, padded - columns)), torch.arange(columns, padded, device=codes.device)
    else:
        stored, empty = codes.index_select(1, source.clamp(min=0)), source.lt(0).nonzero().flatten()
    if len(empty):
        stored[:, empty] = points[:, empty // group]
    return to_blocks(stored), wide.contiguous(), points.contiguous()


def sizes(slots: int, group_size: int) -> tuple[int, int, int]:
    """(padded slots, slots of a group, groups) of a row of `slots`. One group alone holds the padding too."""
    padded = -(-slots // BLOCK) * BLOCK
    group = padded if group_size <= 0 or group_size >= slots else group_size
    return padded, group, -(-padded // group)


def packed_bytes(out: int, columns: int, group_size: int, *, scale_bytes: int = 2, reordered: bool = False) -> int:
    """Bytes of a `Packed4` of that shape, before there is one."""
    padded, _, groups = sizes(columns, group_size)
    return out * (padded // 2 + groups * (scale_bytes + 1)) + (columns * 4 if reordered else 0)
