"""Where a config says how its weights are quantised: at the top, or hidden in the text model's own config.

Knows JSON, no tensors. `section_of(config)`, then `method_of(section)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_FIELDS = ("quantization_config", "compression_config")
_TOWERS = ("vision", "visual", "audio", "image", "vit", "vq")  # configs of these say nothing of the language model


def section_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config's part on quantisation nearest to the top, towers' configs left aside; None if there is none."""
    return next(_sections(config), None)


def method_of(section: Mapping[str, Any]) -> str:
    """Its `quant_method` in lower case; told by the fields of a file from before that field, else `unknown`."""
    named = section.get("quant_method")
    if named:
        return str(named).lower()
    if "config_groups" in section:
        return "compressed-tensors"
    if "w_bit" in section or "zero_point" in section:
        return "awq"
    return "gptq" if "bits" in section and "desc_act" in section else "unknown"


def _sections(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Breadth first."""
    level = [config]
    while level:
        for one in level:
            for field in _FIELDS:
                found = one.get(field)
                if isinstance(found, Mapping) and found:
                    yield found
        level = [
            value
            for one in level
            for key, value in one.items()
            if isinstance(value, Mapping) and key not in _FIELDS and not key.startswith(_TOWERS)
        ]
