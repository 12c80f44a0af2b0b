"""AWQ checkpoints of version gemm, as AutoAWQ writes them.

qweight int32 [in, out / 8]      nibble j of word c is the code of output 8c + ORDER[j]
qzeros  int32 [groups, out / 8]  alike, and not less one;  scales float [groups, out]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.quant.bits import split_words_down
from mmswap.llm.quant.layout import Packed4, pack
from mmswap.llm.quant.scheme import OTHERWISE, Scheme, checked, four_bits, group_of, need, resolved_group, usable_scales

MAIN = "qweight"
SUFFIXES = ("qweight", "qzeros", "scales")
OUTPUTS = ("scales", 1)  # a tensor, and which of its dimensions counts the outputs
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PLACES = [ORDER.index(output) for output in range(8)]  # the nibble that holds each of eight outputs


def scheme(section: Mapping[str, Any], module: str) -> Scheme:
    """What the config says of a packed module. Early files write `w_bit` and `q_group_size`.

    Raises:
        ModelError: another width (`bits`), or another layout (`version`).
    """
    four_bits(section, "bits" if section.get("bits") is not None else "w_bit", module)
    version = str(section.get("version") or "gemm").lower()
    if version != "gemm":
        raise ModelError(f"quantization_config.version is {version} and mmswap reads AWQ gemm only: {OTHERWISE}.")
    field = "group_size" if section.get("group_size") is not None else "q_group_size"
    return Scheme("awq", group_of(section, field), symmetric=section.get("zero_point") is False)


def read(told: Scheme, tensors: Mapping[str, Tensor], module: str) -> Packed4:
    """The module's weight from its tensors by suffix.

    Raises:
        ModelError: tensors that are missing or do not belong together.
    """
    words = need(tensors, "qweight", module, torch.int32)
    scales = usable_scales(need(tensors, "scales", module), "scales", module)
    inputs, (groups, out) = words.shape[0], scales.shape
    checked(words, "qweight", module, (inputs, out // 8))
    group = resolved_group(told, inputs, groups, module)
    points = None
    if "qzeros" in tensors or not told.symmetric:
        zeros = checked(need(tensors, "qzeros", module, torch.int32), "qzeros", module, (groups, out // 8))
        points = split_words_down(zeros, _PLACES)
    return pack(split_words_down(words, _PLACES), scales.t(), points, group_size=group)


def not_converted(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Entries of the config that name modules left as they were."""
    return tuple(map(str, section.get("modules_to_not_convert") or ()))
