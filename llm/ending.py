"""Which token ids end an answer. Knows configs as they are written, no model.

Checkpoints contradict themselves: the end of a turn stands now in `config.json`, now in `generation_config.json`, now
only in the tokenizer. All of them count.
"""

from __future__ import annotations

from typing import Any


def end_ids(config: Any = None, generation_config: Any = None, tokenizer: Any = None) -> frozenset[int]:
    """The union of the end ids that config (nested text config included), generation config and tokenizer name."""
    found: set[int] = set()
    nested = [_field(config, "text_config"), _field(config, "llm_config")]
    getter = getattr(config, "get_text_config", None)
    if getter is not None:
        nested.append(getter(decoder=True))
    for source in (config, *nested, generation_config, tokenizer):
        named = _field(source, "eos_token_id")
        for token in named if isinstance(named, (list, tuple)) else (named,):
            if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
                found.add(token)
    return frozenset(found)


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)
