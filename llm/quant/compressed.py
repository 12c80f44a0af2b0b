"""compressed-tensors checkpoints of format pack-quantized, as llm-compressor writes them; codes are signed there.

weight_packed     int32 [out, in / 8]      nibble j of word c is the code of input 8c + j, plus 8
weight_scale      float [out, groups];     weight_shape int [2] = out, in;  weight_g_idx int [in], -1 if unused
weight_zero_point int32 [out / 8, groups]  packed along the outputs, plus 8; or int8 [out, groups], not packed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.quant.bits import split_words
from mmswap.llm.quant.ignore import listed
from mmswap.llm.quant.layout import MIDDLE, Packed4, pack
from mmswap.llm.quant.scheme import (
    OTHERWISE,
    Scheme,
    checked,
    four_bits,
    group_index,
    group_of,
    need,
    resolved_group,
    usable_scales,
)

MAIN = "weight_packed"
SUFFIXES = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
OUTPUTS = ("weight_packed", 0)  # a tensor, and which of its dimensions counts the outputs
_FORMAT = "pack-quantized"
_ORDERED = ("group", "dynamic", True)  # `weight` and `static`: sorted while rounding, and stored as they stand
_GROUPED = ("group", "channel", "tensor")


def scheme(section: Mapping[str, Any], module: str) -> Scheme:
    """What the config says of a packed module: its group in `config_groups`, by the group's targets.

    Raises:
        ModelError: another `format`, width (`num_bits`), `type` or `strategy`, or activations that are quantised too.
    """
    told = _group_for(section, module)
    form = told.get("format") or section.get("format")
    if form != _FORMAT:
        raise ModelError(f"quantization_config.format is {form} and mmswap reads {_FORMAT} only: {OTHERWISE}.")
    if told.get("input_activations"):
        raise ModelError(f"{module} has quantised input_activations, which mmswap does not compute: {OTHERWISE}.")
    if (place := _transformed(section)) is not None:
        raise ModelError(
            f"quantization_config.transform_config turns each layer's {place} on the way, which mmswap does not "
            f"compute: {OTHERWISE}."
        )
    weights = told.get("weights")
    weights = weights if isinstance(weights, Mapping) else {}
    four_bits(weights, "num_bits", module)
    strategy = weights.get("strategy") or ("channel" if weights.get("group_size") is None else "group")
    for field, value, known in (("type", weights.get("type", "int"), ("int",)), ("strategy", strategy, _GROUPED)):
        if value not in known:
            raise ModelError(f"{module} is stored with {field} {value}, which mmswap does not read: {OTHERWISE}.")
    return Scheme(
        "compressed-tensors",
        group_of(weights, "group_size") if strategy == "group" else -1,
        act_order=weights.get("actorder") in _ORDERED,
        symmetric=bool(weights.get("symmetric", True)),
    )


def read(told: Scheme, tensors: Mapping[str, Tensor], module: str) -> Packed4:
    """The module's weight from its tensors by suffix.

    Raises:
        ModelError: tensors that are missing or do not belong together, `actorder` without `weight_g_idx`.
    """
    words = need(tensors, "weight_packed", module, torch.int32)
    out, inputs = _shape(tensors, words, module)
    checked(words, "weight_packed", module, (out, -(-inputs // 8)))
    scales = _scales(tensors, out, module)
    groups = scales.shape[1]
    group = resolved_group(told, inputs, groups, module)
    order = group_index(tensors, "weight_g_idx", module, inputs, groups)
    if told.act_order and order is None and groups > 1:
        raise ModelError(
            f"{module} has no weight_g_idx and the config says actorder, so its groups are not known: {OTHERWISE}."
        )
    points = None if told.symmetric and "weight_zero_point" not in tensors else _points(tensors, out, groups, module)
    if told.symmetric and points is not None and bool((points != MIDDLE).any()):
        raise ModelError(
            f"{module} has a weight_zero_point and the config says symmetric: one is wrong, so download both again."
        )
    return pack(split_words(words)[:, :inputs], scales, points, group_size=group, groups=order)


def not_converted(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Entries of the config that name modules left as they were."""
    return tuple(map(str, section.get("ignore") or ()))


def _group_for(section: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The group whose targets name the module, else the one that names its class: every packed module is a `Linear`."""
    found = section.get("config_groups")
    groups = [group for group in found.values() if isinstance(group, Mapping)] if isinstance(found, Mapping) else []
    named = [group for group in groups if listed(module, group.get("targets") or ())]
    chosen = named or [group for group in groups if "Linear" in (group.get("targets") or ())]
    if not chosen:
        raise ModelError(
            f"{module} is packed and no group of quantization_config.config_groups targets it: {OTHERWISE}."
        )
    return chosen[0]


def _transformed(section: Mapping[str, Any]) -> str | None:
    """Where a rotation must be applied at every token; those named `weight_...` are in the weights already."""
    told = section.get("transform_config")
    groups = told.get("config_groups") if isinstance(told, Mapping) else None
    for group in groups.values() if isinstance(groups, Mapping) else ():
        for one in group.get("apply") or ():
            if not str(one.get("location")).startswith("weight_"):
                return str(one.get("location"))
    return None


def _shape(tensors: Mapping[str, Tensor], words: Tensor, module: str) -> tuple[int, int]:
    shape = tensors.get("weight_shape")
    if shape is None:
        return words.shape[0], words.shape[1] * 8
    if shape.numel() != 2:
        raise ModelError(
            f"{module}.weight_shape has {shape.numel()} numbers and must have 2: download the model again."
        )
    out, inputs = (int(size) for size in shape.flatten())
    return out, inputs


def _scales(tensors: Mapping[str, Tensor], out: int, module: str) -> Tensor:
    """[out, groups]; one scale for all outputs, or a vector with one for each, is spread."""
    scales = tensors.get("weight_scale")
    if scales is not None and scales.dim() < 2:
        scales = scales.reshape(-1, 1)
    found = need({} if scales is None else {"weight_scale": scales}, "weight_scale", module)
    found = found.expand(out, 1) if found.shape == (1, 1) else found
    return usable_scales(checked(found, "weight_scale", module, (out, found.shape[1])), "weight_scale", module)


def _points(tensors: Mapping[str, Tensor], out: int, groups: int, module: str) -> Tensor:
    """uint8 [out, groups] of 0..15."""
    points = tensors.get("weight_zero_point")
    if points is not None and points.dtype == torch.int8:
        points = points.reshape(-1, 1) if points.dim() < 2 else points
        points = points.expand(out, 1) if points.shape == (1, 1) else points
        return (checked(points, "weight_zero_point", module, (out, groups)) + MIDDLE).to(torch.uint8)
    words = need(tensors, "weight_zero_point", module, torch.int32)
    checked(words, "weight_zero_point", module, (-(-out // 8), groups))
    return split_words(words.t())[:, :out].t()
