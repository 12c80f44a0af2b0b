"""gptq_shuffle: a GPTQ checkpoint's tensors into `Packed4`, once, at load: what it takes and returns.

    torch.ops.mmswap.gptq_shuffle(qweight, qzeros, scales, source, table, columns, group, zero_mode)
    -> words, scales, zeros

    qweight, qzeros, scales     as `quant/gptq.py` describes them; no qzeros: all 8
    source     int32 [padded], the column in each slot, -1 for none; None: slot s is column s
    table      int32 [stored], the checkpoint's group that each stored one is; None: itself
    columns    inputs of the weight;  group: slots that share a scale

Apart from the ops of decode, which are tried on every card: this one is asked for where a checkpoint needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmswap.llm.ops.schema import BLOCK, Op, _floating, _of_dtype, _require, _shape, _together

NAME = "gptq_shuffle"
STORED, LESS_ONE, SYMMETRIC = range(3)
"""Zero points: as stored, stored less one, all 8."""


def _check(qweight: Tensor, qzeros: Tensor | None, scales: Tensor, source: Tensor | None, table: Tensor | None,
           columns: int, group_size: int, zero_mode: int) -> None:  # fmt: skip
    _of_dtype("qweight", qweight, torch.int32)
    _of_dtype("qzeros", qzeros, torch.int32)
    _floating("scales", scales)
    _require(columns >= 1 and group_size >= 1, f"{columns} columns in groups of {group_size} are no weight.")
    _require(zero_mode in (STORED, LESS_ONE, SYMMETRIC), f"a zero_mode of {zero_mode} is none.")
    _require(scales.dim() == 2, f"scales have shape {list(scales.shape)}, not [groups, out].")
    groups, out = scales.shape
    _shape("qweight", qweight, (-(-columns // 8), out))
    _shape("qzeros", qzeros, (groups, -(-out // 8)))
    for name, index in (("source", source), ("table", table)):
        _of_dtype(name, index, torch.int32)
        _require(index is None or index.dim() == 1, f"{name} has more dimensions than one.")
    _require(source is None or source.shape[0] % BLOCK == 0, "source does not fill whole blocks.")
    count = -(-padded(columns, source) // group_size)
    stored = groups if table is None else table.shape[0]
    _require(stored <= count, f"{stored} groups are more than a row of {count} has.")
    _together(qweight, qzeros, scales, source, table)


def _outputs(qweight: Tensor, qzeros: Tensor | None, scales: Tensor, source: Tensor | None, table: Tensor | None,
             columns: int, group_size: int, zero_mode: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    out, row = scales.shape[1], padded(columns, source)
    shape = (out, -(-row // group_size))
    words = qweight.new_empty((out, row // 8))
    return words, scales.new_empty(shape), qweight.new_empty(shape, dtype=torch.uint8)


OP = Op(
    "(Tensor qweight, Tensor? qzeros, Tensor scales, Tensor? source, Tensor? table, int columns, int group_size, "
    "int zero_mode) -> (Tensor, Tensor, Tensor)",
    _check,
    _outputs,
)


def padded(columns: int, source: Tensor | None) -> int:
    """Slots of a row."""
    return -(-columns // BLOCK) * BLOCK if source is None else source.shape[0]
