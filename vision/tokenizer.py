"""Load a checkpoint's tokenizer, also when its class is missing or unknown here. Knows no prompts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from mmswap.errors import ModelError, told
from mmswap.vision.checkpoint import find_file, read_json

_OTHER_KINDS = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model")


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False) -> Any:
    """transformers' tokenizer; one of a missing or unknown class is read from `tokenizer.json`, with a warning.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    import transformers

    settings = read_json(source, "tokenizer_config.json")
    name = settings.get("tokenizer_class")
    known = isinstance(name, str) and (hasattr(transformers, name) or "auto_map" in settings)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    except Exception as error:
        if find_file(source, "tokenizer.json") is None:
            raise ModelError(f"{source}: {_without_file(source, error)}.") from error
        tokenizer = _from_file(source, error)
        known = False
    if not known:
        what = f"the tokenizer class {name}, which is unknown here" if name else "no tokenizer class"
        warnings.warn(f"{source} names {what}: the tokenizer was read from tokenizer.json.", stacklevel=2)
    return tokenizer


def _from_file(source: str | Path, first: Exception) -> Any:
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(str(source))
    except Exception as error:
        raise ModelError(f"{source}: its tokenizer cannot be read ({told(error)}).") from first


def _without_file(source: str | Path, error: Exception) -> str:
    """Why there is no tokenizer where there is no `tokenizer.json`: another kind cannot be read, or there is none."""
    other = next((name for name in _OTHER_KINDS if find_file(source, name) is not None), None)
    return (
        f"it has no tokenizer.json, and {other} cannot be read ({told(error)})" if other else "it has no tokenizer.json"
    )
