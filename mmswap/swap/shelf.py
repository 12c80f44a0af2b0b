"""Small JSON files that outlive the process: written whole or not at all, read without trust. Knows bytes, no profiles.

    put(cache_folder() / "name.json", {"a": 1})     # False where nothing can be written; said once
    take(cache_folder() / "name.json")              # the dict, or None

The folder is the user's cache, or what MMSWAP_CACHE names.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from mmswap.errors import told

_LARGEST = 32 << 20  # bytes; what is larger was not written by us
_ATTEMPTS = 20  # Windows refuses to replace a file while somebody reads it
_log = logging.getLogger(__name__)
_said: set[str] = set()


def cache_folder() -> Path:
    """Where profiles are kept: `MMSWAP_CACHE`, else the user's cache folder. It need not exist."""
    chosen = os.environ.get("MMSWAP_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_path("mmswap", appauthor=False))


def write_atomically(path: Path, text: str) -> None:
    """`path` holds `text` (UTF-8), or is as it was; other processes see the old file or the new one, never a part.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        with open(aside, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def put(path: Path, values: Mapping[str, Any]) -> bool:
    """Writes `values` as JSON. Where that cannot be done, one message per folder says so and the answer is False."""
    try:
        write_atomically(path, json.dumps(values, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        _say_once(str(path.parent), f"Nothing is kept in {path.parent}: {error.strerror or error}.")
        return False
    return True


def take(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None where there is none, and a message where there is something else."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is far too large")
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        return values
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        ignore(path, error)
        return None


def ignore(path: Path, error: Exception) -> None:
    """Says once that a file is not used, and why."""
    _say_once(str(path), f"{path} is ignored: {told(error)}.")


def _replace(aside: Path, path: Path) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            os.replace(aside, path)
            return
        except PermissionError:
            if os.name != "nt" or attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(0.02)


def _say_once(about: str, sentence: str) -> None:
    if about not in _said:
        _said.add(about)
        _log.warning(sentence)
