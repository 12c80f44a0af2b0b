"""How one module is stored, and the checks that every reader makes of its tensors. Knows no format.

A `Scheme` is what a config says; a reader holds it against the tensors and refuses what does not belong together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.quant.layout import SCALE_DTYPES

OTHERWISE = "take a 4-bit checkpoint that mmswap reads, or the plain one with --quantize int4"
"""What to do about a checkpoint that cannot be read."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a config says of one packed module.

    Attributes:
        method: `gptq`, `awq` or `compressed-tensors`.
        group_size: columns that share a scale; -1 the whole row; None if the config does not say.
        act_order: the columns are grouped by importance and not as they stand, so that a `g_idx` is needed.
        less_one: zero points are stored less one (GPTQ's first format).
        symmetric: no zero points are needed.
    """

    method: str
    group_size: int | None
    act_order: bool = False
    less_one: bool = False
    symmetric: bool = False

    def __str__(self) -> str:
        groups = {None: "groups as stored", -1: "one scale a row"}.get(self.group_size, f"groups of {self.group_size}")
        return f"{self.method}, 4 bits, {groups}" + (", act-order" if self.act_order else "")


def whole_number(section: Mapping[str, Any], field: str, default: int | None) -> int | None:
    """An int of the config, or `default` where it is missing or null.

    Raises:
        ModelError: it is something else.
    """
    value = section.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"quantization_config.{field} is {value!r} and must be a whole number: mend config.json.")
    return value


def group_of(section: Mapping[str, Any], field: str) -> int | None:
    """The group size of the config: 1 or more, -1 for the whole row (0 is written for it too), None if missing."""
    size = whole_number(section, field, None)
    if size is not None and size < -1:
        raise ModelError(f"quantization_config.{field} is {size} and must be -1, or 1 or more: mend config.json.")
    return -1 if size == 0 else size


def four_bits(section: Mapping[str, Any], field: str, module: str) -> None:
    """Raises ModelError unless the config's width is 4."""
    bits = whole_number(section, field, None)
    if bits != 4:
        raise ModelError(f"{module} is stored with {field} {bits} and mmswap reads 4 only: {OTHERWISE}.")


def need(tensors: Mapping[str, Tensor], suffix: str, module: str, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor `module.suffix`, a matrix, of the dtype if one is given.

    Raises:
        ModelError: it is missing or of another kind.
    """
    tensor = tensors.get(suffix)
    if tensor is None:
        raise ModelError(f"{module} is quantised and its {suffix} is missing: download the model again.")
    if tensor.dim() != 2 or tensor.numel() == 0 or (dtype is not None and tensor.dtype != dtype):
        wanted = "" if dtype is None else f"{dtype} "
        raise ModelError(
            f"{module}.{suffix} is {tensor.dtype} {list(tensor.shape)} and must be a {wanted}matrix: {OTHERWISE}."
        )
    return tensor


def checked(tensor: Tensor, suffix: str, module: str, shape: tuple[int, int]) -> Tensor:
    """The tensor, if it has that shape.

    Raises:
        ModelError: it has another.
    """
    if tuple(tensor.shape) != shape:
        raise ModelError(
            f"{module}.{suffix} is {list(tensor.shape)} and must be {list(shape)} for its other tensors and the "
            f"group_size of the config: download the model again."
        )
    return tensor


def usable_scales(scales: Tensor, suffix: str, module: str) -> Tensor:
    """The scales as stored.

    Raises:
        ModelError: a dtype that no scale is kept in, or one that is not finite.
    """
    if scales.dtype not in SCALE_DTYPES:
        raise ModelError(f"{module}.{suffix} is {scales.dtype} and must be a 16 or 32 bit float: {OTHERWISE}.")
    if not bool(torch.isfinite(scales).all()):
        raise ModelError(f"{module}.{suffix} holds values that are not finite: download the model again.")
    return scales


def resolved_group(scheme: Scheme, columns: int, groups: int, module: str) -> int:
    """Columns that share a scale, by the config, or by the number of scales in a row where the config is silent.

    Raises:
        ModelError: the two do not agree.
    """
    size = scheme.group_size
    if size is None:
        size = -1 if groups == 1 else -(-columns // groups)
    whole = columns if size == -1 else size
    if -(-columns // whole) != groups:
        raise ModelError(
            f"{module} has {groups} scales a row for {columns} inputs and the config's group_size is "
            f"{scheme.group_size}: the two do not belong together, so download config.json and the weights again."
        )
    return whole


def group_index(tensors: Mapping[str, Tensor], suffix: str, module: str, columns: int, groups: int) -> Tensor | None:
    """int64 [columns], the group of each input, or None where groups are consecutive: no such tensor, or unused (-1).

    Raises:
        ModelError: it has another length, or names a group that is not there.
    """
    index = tensors.get(suffix)
    if index is None or bool((index == -1).all()):
        return None
    index = index.flatten().long()
    if len(index) != columns or int(index.min()) < 0 or int(index.max()) >= groups:
        raise ModelError(
            f"{module}.{suffix} does not give each of {columns} inputs one of {groups} groups: "
            "download the model again."
        )
    return index
