"""Whether a config's list names a module: as a name, a part of one, or `re:` and a pattern; in any version's spelling.

Knows names, no tensors: what a file really holds decides, and this only confirms it (`which.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mmswap.errors import ModelError
from mmswap.llm.quant.names import WRAPPERS, aliases, core


def listed(module: str, entries: Iterable[str]) -> str | None:
    """The first entry that names the module or what it lies in, or None.

    An entry is matched by whole parts: `visual` names `model.visual.blocks.0.fc1`, and `mlp.gate` does not name
    `mlp.gate_proj`. Dots at its ends mean nothing. An entry that begins with `model.` or the like is held against the
    begin of the name, so that a decoder's `model.layers.0` never names a tower's `vision_tower.layers.0`.

    Raises:
        ModelError: a pattern that is none.
    """
    return next((entry for entry in entries if _names(str(entry), module)), None)


def _names(entry: str, module: str) -> bool:
    if entry.startswith("re:"):
        return _matches(entry.removeprefix("re:"), module)
    wanted = entry.strip(".")
    if not wanted:
        return False
    if wanted.split(".")[0] in WRAPPERS and core(wanted) != wanted:
        return f"{core(module)}.".startswith(f"{core(wanted)}.")
    return f".{wanted}." in f".{module}."


def _matches(pattern: str, module: str) -> bool:
    try:
        compiled = re.compile(pattern.rstrip("."))
    except re.error as error:
        raise ModelError(f"quantization_config lists 're:{pattern}', which is no pattern ({error}): mend it.") from None
    return any(compiled.match(name) for name in aliases(module))
