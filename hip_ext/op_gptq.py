"""gptq_shuffle: a GPTQ checkpoint's tensors into the layout of the other kernels, at load. Meaning: `docs/ops.md`."""

from __future__ import annotations

import torch
from torch import Tensor

from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.launching import address, code, oversized, scattered, start

_GPTQ = STRUCTS["mms_gptq"]
_BLOCK = 128
_BLOCKS = 65535
"""Words and groups of a row: a block of the grid's second dimension each."""


def refuses(
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    source: Tensor | None,
    table: Tensor | None,
    columns: int,
    group_size: int,
    zero_mode: int,
) -> str | None:
    """Why not; None when `run` is right."""
    padded = _padded(columns, source)
    rows = padded // 8 + -(-padded // group_size)
    if rows > _BLOCKS:
        return f"{padded} columns in groups of {group_size} are too many"
    apart = scattered(qweight=qweight, qzeros=qzeros, scales=scales, source=source, table=table)
    return apart or oversized(qweight)


def run(
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    source: Tensor | None,
    table: Tensor | None,
    columns: int,
    group_size: int,
    zero_mode: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(words, scales, zeros) of a `Packed4`."""
    (groups, outputs), padded = scales.shape, _padded(columns, source)
    count = -(-padded // group_size)
    words = qweight.new_empty((outputs, padded // 8))
    scales_out = scales.new_empty((outputs, count))
    zeros_out = qweight.new_empty((outputs, count), dtype=torch.uint8)
    if words.numel():
        arguments = _GPTQ(
            qweight=qweight.data_ptr(), qzeros=address(qzeros), scales=scales.data_ptr(), source=address(source),
            table=address(table), words=words.data_ptr(), scales_out=scales_out.data_ptr(),
            zeros_out=zeros_out.data_ptr(), columns=columns, outputs=outputs, padded=padded, group_size=group_size,
            groups_in=groups, groups_out=count, stored=groups if table is None else table.shape[0],
            scale_dtype=code(scales), zero_mode=zero_mode,
        )  # fmt: skip
        start("mms_gptq_shuffle", arguments, qweight.device)
    return words, scales_out, zeros_out


def _padded(columns: int, source: Tensor | None) -> int:
    return -(-columns // _BLOCK) * _BLOCK if source is None else source.shape[0]
