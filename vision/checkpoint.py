"""Files of a checkpoint, a local folder or a hub id: find one, read one as JSON. Knows not what they mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mmswap.errors import ModelError, told

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def check_source(source: str | Path) -> None:
    """Refuse what is neither a folder nor looks like a hub id.

    Raises:
        ModelError: the sentence says which of the two it could not be.
    """
    path = Path(source)
    if path.is_dir():
        return
    if path.exists():
        raise ModelError(f"{source} is a file; give the folder of a checkpoint or the id of a model on the hub.")
    if isinstance(source, Path) or not _HUB_ID.fullmatch(source):
        raise ModelError(f"{source} is neither a folder that exists nor the id of a model on the hub.")


def find_file(source: str | Path, name: str) -> str | None:
    """The local path of a file of the checkpoint (downloaded if need be), or None if it has no such file."""
    from transformers.utils import cached_file

    try:
        found: str | None = cached_file(
            str(source),
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError as error:
        raise ModelError(f"{source}: {name} cannot be found ({told(error)}).") from error
    return found


def read_json(source: str | Path, name: str) -> dict[str, Any]:
    """A JSON object of the checkpoint; empty if it has no such file.

    Raises:
        ModelError: the file is not a JSON object.
    """
    path = find_file(source, name)
    if path is None:
        return {}
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{source}: {name} cannot be read ({told(error)}).") from error
    if not isinstance(value, dict):
        raise ModelError(f"{source}: {name} does not hold a JSON object.")
    return value
