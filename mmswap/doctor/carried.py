"""The model that comes with mmswap: are its files whole (quick), does it load and answer (full)?"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from mmswap.doctor.check import Check, sentence
from mmswap.units import format_bytes

NAME = "carried model"
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja")
WEIGHTS = "model.safetensors"


def folder() -> Path:
    """Where it lies."""
    return Path(str(files("mmswap") / "carried" / "seer"))


def whole(home: Path) -> Check:
    """Every file is there and can be read; the weights are as long as their header says."""
    missing = [name for name in (*NEEDED, WEIGHTS) if not (home / name).is_file()]
    advice = "reinstall mmswap"
    if missing:
        return Check(NAME, "broken", "incomplete", f"{', '.join(missing)} is missing", advice)
    try:
        for name in NEEDED:
            text = (home / name).read_text(encoding="utf-8")
            if name.endswith(".json"):
                json.loads(text)
        tensors, nbytes = _weights(home / WEIGHTS)
    except Exception as error:
        return Check(NAME, "broken", "damaged", sentence(error), advice)
    facts = {"tensors": tensors, "bytes": nbytes}
    return Check(NAME, "ok", f"{tensors} tensors, {format_bytes(nbytes)}; --full loads it", facts=facts)


def answers(home: Path) -> Check:
    """Loads it on the processor and asks it one question."""
    found = whole(home)
    if found.state == "broken":
        return found
    try:
        from mmswap.runtime import load

        answer = load(str(home), card="cpu").chat("What is this?", max_new_tokens=4)
    except Exception as error:
        return Check(NAME, "broken", "does not load or answer", sentence(error), "", found.facts)
    tokens = answer.completion_tokens
    return Check(NAME, "ok", f"loads, and answers with {tokens} tokens on the processor", facts=found.facts)


def _weights(path: Path) -> tuple[int, int]:
    """Tensors and bytes.

    Raises:
        Exception: the file is cut off or no safetensors file.
    """
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as opened:
        return len(list(opened.keys())), path.stat().st_size
