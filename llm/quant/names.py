"""Names of modules across library versions: the same module with or without `model.`, `language_model.` before it.

Knows dotted names only. `core("model.language_model.layers.0.mlp.up_proj")` is `layers.0.mlp.up_proj`.
"""

from __future__ import annotations

WRAPPERS = frozenset({"model", "language_model", "text_model"})
"""Leading parts that versions of a library add, drop and swap. A tower's own part is never one of them."""
_LANGUAGE = frozenset({"layers", "lm_head", "embed_tokens", "norm"})
_BEFORE_ANY = ("", "model.")
_BEFORE_LANGUAGE = ("language_model.", "model.language_model.", "language_model.model.", "model.text_model.")


def core(name: str) -> str:
    """The name without leading wrappers; a name of nothing else stays."""
    parts = name.strip(".").split(".")
    kept = next((index for index, part in enumerate(parts) if part not in WRAPPERS), 0)
    return ".".join(parts[kept:])


def aliases(name: str) -> tuple[str, ...]:
    """The name, and what else the module may be called. A tower is never given a language model's name."""
    inner = core(name)
    before = _BEFORE_ANY + (_BEFORE_LANGUAGE if inner.split(".")[0] in _LANGUAGE else ())
    return tuple(dict.fromkeys((name, *(head + inner for head in before))))
