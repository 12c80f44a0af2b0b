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
from torch.nn import functional

from mmswap.errors import ModelError
from mmswap.llm.ops import reference, shuffle
from mmswap.llm.quant.bits import split_words_down
from mmswap.llm.quant.columns import arrange
from mmswap.llm.quant.layout import MIDDLE, Packed4, sizes
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
HOST = "cpu"
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
    return _shuffled(words, zeros, scales, order, inputs, group, _zero_mode(told, zeros, out))


def _shuffled(
    words: Tensor, qzeros: Tensor, scales: Tensor, order: Tensor | None, inputs: int, group: int, zero_mode: int
) -> Packed4:
    """In the layout, where the tensors lie: on a card by the op table, on the host by plain torch."""
    placed = arrange(torch.arange(inputs, device=words.device) // group if order is None else order, group)
    padded, size, _ = sizes(len(placed.slots), group)
    source, table = None, None
    if placed.reordered:
        source = functional.pad(placed.slots, (0, padded - len(placed.slots)), value=-1).to(torch.int32)
        table = placed.table.to(torch.int32)
    run = reference.gptq_shuffle if words.device.type == HOST else torch.ops.mmswap.gptq_shuffle
    words, qzeros, scales = words.contiguous(), qzeros.contiguous(), scales.contiguous()
    words, scales, zeros = run(words, qzeros, scales, source, table, inputs, size, zero_mode)
    into = placed.slots.clamp(min=0).to(torch.int32) if placed.reordered else None
    return Packed4(words, scales, zeros, inputs, size, into)


def _zero_mode(told: Scheme, qzeros: Tensor, out: int) -> int:
    """How zero points are stored.

    A symmetric weight's are 8: stored as 7 or 8 throughout they mean that, even where the format is named wrongly.
    """
    if told.symmetric:
        stored = split_words_down(qzeros)[:out]
        if bool((stored == stored[0, 0]).all()) and int(stored[0, 0]) in (MIDDLE - 1, MIDDLE):
            return shuffle.SYMMETRIC
    return shuffle.LESS_ONE if told.less_one else shuffle.STORED


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
