"""Scales of keys and values that a checkpoint brings, calibrated by whoever quantised it.

    scales = given_scales(checkpoint.tensors, layers=28);  scales.by_layer[3]       # (k_scale, v_scale)

Names in use, after the layer's number: `self_attn.k_scale`, `self_attn.attn.k_scale`, `self_attn.k_proj.k_scale`,
`self_attn.k_proj.output_scale`, the same with v, and `self_attn.kv_scale` for both. One number each; some write a
vector with one number in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mmswap.llm.checkpoint import Entry
from mmswap.llm.tensors import read

_NAME = re.compile(r"(?:^|\.)layers?\.(\d+)\.(?:.*\.)?(?:(?:(k|v)_proj\.)?(k|v|kv)_scale|(k|v)_proj\.output_scale)$")
_TOWERS = re.compile(r"(?:^|\.)(?:vision|visual|audio|image)[a-z_]*\.")


@dataclass(frozen=True, slots=True)
class Given:
    """`by_layer`: (k_scale, v_scale) of each layer that has both. `said`: sentences about that, for the log."""

    by_layer: dict[int, tuple[float, float]] = field(default_factory=dict)
    said: tuple[str, ...] = ()


def given_scales(tensors: Mapping[str, Entry], layers: Iterable[int]) -> Given:
    """The scales among a checkpoint's tensors.

    Args:
        layers: those that keep keys and values.
    """
    found: dict[int, dict[str, float]] = {}
    odd: list[str] = []
    for name, entry in tensors.items():
        match = None if _TOWERS.search(name) else _NAME.search(name)
        if match is None:
            continue
        number = _number(entry)
        if number is None:
            odd.append(name)
            continue
        side = match[3] or match[4]
        for one in side:
            found.setdefault(int(match[1]), {}).setdefault(one, number)
    whole = {index: (pair["k"], pair["v"]) for index, pair in sorted(found.items()) if len(pair) == 2}
    return Given(whole, tuple(_sentences(whole, found, odd, sorted(layers))))


def _sentences(
    whole: Mapping[int, tuple[float, float]],
    found: Mapping[int, Mapping[str, float]],
    odd: list[str],
    layers: list[int],
) -> Iterable[str]:
    if odd:
        yield f"The checkpoint's {odd[0]} is no single number above 0, so it is not used ({len(odd)} such)."
    if whole:
        yield f"KV scales come with the checkpoint, for layers {_ranges(sorted(whole))}."
    half = sorted(set(found) - set(whole))
    if half:
        yield f"Warning: {_layers(half)} a scale for keys or for values but not for both; it is not used."
    missing = [index for index in layers if index not in whole]
    if found and missing:
        yield f"Warning: {_layers(missing)} no KV scales; theirs are taken from the first tokens."


def _number(entry: Entry) -> float | None:
    if math.prod(entry.shape) != 1:
        return None
    number = float(read(entry).float().reshape(-1)[0])
    return number if math.isfinite(number) and number > 0 else None


def _layers(numbers: list[int]) -> str:
    return f"layer{'s' * (len(numbers) > 1)} {_ranges(numbers)} {'have' if len(numbers) > 1 else 'has'}"


def _ranges(numbers: list[int]) -> str:
    """`0-3, 7`"""
    parts: list[str] = []
    start = previous = numbers[0]
    for number in [*numbers[1:], -1]:
        if number != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ", ".join(parts)
