"""Names of modules across library versions: the same module with or without `model.`, `language_model.` before it.

Knows dotted names only. `core("model.language_model.layers.0.mlp.up_proj")` is `layers.0.mlp.up_proj`; `place` finds
for each module of a file the module of a model.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmswap.errors import ModelError

WRAPPERS = frozenset({"model", "language_model", "text_model"})
"""Leading parts that versions of a library add, drop and swap. A tower's own part is never one of them."""
_LANGUAGE = frozenset({"layers", "lm_head", "embed_tokens", "norm"})
_BEFORE_ANY = ("", "model.")
_BEFORE_LANGUAGE = ("language_model.", "model.language_model.", "language_model.model.", "model.text_model.")
_SHOWN = 5


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


def place(stored: Iterable[str], modules: Iterable[str]) -> dict[str, str]:
    """For each module name of a file, the module of the model: of the same name, else the only one of the same core.

    Raises:
        ModelError: names for which the model has no module or several, or that share one; it lists them.
    """
    known = set(modules)
    by_core: dict[str, list[str]] = {}
    for module in known:
        by_core.setdefault(core(module), []).append(module)
    placed, lost = {}, []
    for name in stored:
        near = [name] if name in known else by_core.get(core(name), [])
        if len(near) == 1:
            placed[name] = near[0]
        else:
            lost.append(name)
    taken = list(placed.values())
    lost += [name for name, module in placed.items() if taken.count(module) > 1]
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        raise ModelError(
            f"the file holds {', '.join(sorted(lost)[:_SHOWN])}{more}, for which the model has no module of its own: "
            "is config.json that of these weights?"
        )
    return placed
