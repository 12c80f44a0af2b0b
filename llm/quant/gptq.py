"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: both formats of the zero points, act-order, any group size.

qweight int32 [in / 8, out]      nibble j of word r is the code of input 8r + j
qzeros  int32 [groups, out / 8]  nibble j of word c is the zero point of output 8c + j; format `gptq` stores it less 1
scales  float [groups, out];     g_idx int [in], the group of each input
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.quant.bits import split_words, split_words_down
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

MAIN = "qweight"
SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")
OUTPUTS = ("scales", 1)  # a tensor, and which of its dimensions counts the outputs
_LESS_ONE = {"gptq": True, "gptq_v2": False}


def scheme(section: Mapping[str, Any], module: str) -> Scheme:
    """What the config says of a packed module.

    Raises:
        ModelError: another width (`bits`), or another layout (`checkpoint_format`).
    """
    section = {**section, **(_dynamic(section, module) or {})}
    four_bits(section, "bits", module)
    form = str(section.get("checkpoint_format") or section.get("format") or "gptq").lower()
    if form not in _LESS_ONE or section.get("is_marlin_format"):
        form = "marlin" if section.get("is_marlin_format") else form
        raise ModelError(f"quantization_config.checkpoint_format is {form}, which mmswap does not read: {OTHERWISE}.")
    return Scheme(
        "gptq",
        group_of(section, "group_size"),
        act_order=bool(section.get("desc_act", False)),
        less_one=_LESS_ONE[form],
        symmetric=bool(section.get("sym", False)),
    )


def read(told: Scheme, tensors: Mapping[str, Tensor], module: str) -> Packed4:
    """The module's weight from its tensors by suffix.

    Raises:
        ModelError: tensors that are missing or do not belong together, `desc_act` without `g_idx`.
    """
    words = need(tensors, "qweight", module, torch.int32)
    scales = usable_scales(need(tensors, "scales", module), "scales", module)
    index = tensors.get("g_idx")
    inputs = words.shape[0] * 8 if index is None or not index.numel() else index.numel()
    groups, out = scales.shape
    checked(words, "qweight", module, (-(-inputs // 8), out))
    zeros = checked(need(tensors, "qzeros", module, torch.int32), "qzeros", module, (groups, -(-out // 8)))
    group = resolved_group(told, inputs, groups, module)
    order = group_index(tensors, "g_idx", module, inputs, groups)
    if told.act_order and order is None and groups > 1:
        raise ModelError(
            f"{module} has no g_idx and the config says desc_act, so its groups are not known: {OTHERWISE}."
        )
    codes = split_words(words.t())[:, :inputs]
    points = _points(told, split_words_down(zeros)[:out])
    return pack(codes, scales.t(), points, group_size=group, groups=order)


def _points(told: Scheme, stored: Tensor) -> Tensor:
    """uint8 [out, groups], zero points of 0..15.

    A symmetric weight's are 8: stored as 7 or 8 throughout they mean that, even where the format is named wrongly.
    """
    if told.symmetric and bool((stored == stored[0, 0]).all()) and int(stored[0, 0]) in (MIDDLE - 1, MIDDLE):
        return torch.full_like(stored, MIDDLE)
    # In four bits: 0 less one was stored as 15, and no quantiser gives 16.
    return (stored + 1) & 15 if told.less_one else stored


def not_converted(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Entries of the config that name modules left as they were."""
    left = [f"re:{key.removeprefix('-:')}" for key in _rules(section) if key.startswith("-:")]
    return (*left, *map(str, section.get("modules_to_not_convert") or ()))


def _rules(section: Mapping[str, Any]) -> Mapping[str, Any]:
    rules = section.get("dynamic")
    return rules if isinstance(rules, Mapping) else {}


def _dynamic(section: Mapping[str, Any], module: str) -> Mapping[str, Any] | None:
    """What GPTQModel's `dynamic` sets otherwise for the module: the first `+:regex` that matches."""
    for key, told in _rules(section).items():
        if not key.startswith("-:") and isinstance(told, Mapping) and re.match(key.removeprefix("+:"), module):
            return told
    return None
