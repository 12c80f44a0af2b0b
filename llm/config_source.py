"""The config of a model, wherever it is: a folder, a config.json, the hub's local cache, a shipped profile.

`find_config("org/name")` reads JSON and builds transformers' config of it. Nothing is downloaded, no weight is read and
no code of a checkpoint is run. Knows no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmswap import profiles
from mmswap.errors import ModelError, told

HUB_ID = re.compile(r"[A-Za-z0-9_.-]{1,96}(/[A-Za-z0-9_.-]{1,96})?")


@dataclass(frozen=True, slots=True)
class Located:
    """A config as JSON, what the user called it, and the folder with the model's other files (None: it came alone).

    `profile`: the shipped one whose config this is; empty for all others.
    """

    name: str
    values: dict[str, Any]
    folder: Path | None
    profile: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A config of transformers; else as `Located`."""

    name: str
    config: Any
    folder: Path | None


def find_config(source: str | Path) -> FoundConfig:
    """The config of `source`, of an image-text-to-text model.

    Raises:
        ModelError: there is none, it is damaged, or it is that of another kind of model; the sentence says which.
    """
    found = locate(source)
    return FoundConfig(found.name, _config_of(found.values, found.name), found.folder)


def locate(source: str | Path) -> Located:
    """Where the config of `source` is, and what it says, whatever model it describes. Needs no transformers.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    name = str(source)
    try:
        path = Path(source).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long for a name, or a home that nobody has
        raise ModelError(f"{name:.80} cannot be looked for: {getattr(error, 'strerror', None) or error}.") from None
    if name.strip() and path.is_dir():
        return Located(name, _read(path / "config.json"), path)
    if name.strip() and path.is_file():
        values = _read(path)
        inner = values.get("config")  # a profile's JSON holds it so
        return Located(
            name, inner if isinstance(inner, dict) else values, path.parent if path.name == "config.json" else None
        )
    cached = _cached(name)
    if cached is not None:
        return Located(name, _read(cached / "config.json"), cached)
    profile = _shipped(name)
    return Located(name, profile["config"], None, profile)


def _shipped(name: str) -> dict[str, Any]:
    try:
        return profiles.read(name)
    except profiles.UnknownProfile as error:
        meant = f" (did you mean {' or '.join(error.near[:3])}?)" if error.near else ""
        raise ModelError(
            f"There is no folder or file {name}, no shipped profile of that name{meant}, and no such model in the "
            f"hub's local cache: give a folder, a config.json, or one of {', '.join(profiles.names())}."
        ) from None


def _cached(name: str) -> Path | None:
    """The snapshot of a hub id in the local cache."""
    if not HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import constants

    if not (Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir():
        return None  # the rest of the hub's library takes longer to import than all else here
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # looks like an id, and is none
        return None
    return Path(found).parent if isinstance(found, str) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {path.name}: give the folder of a model, or its config.json.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise ModelError(f"{path} is not JSON: {told(error)}.") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object, as a model's config does.")
    return values


def _config_of(values: dict[str, Any], name: str) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{name}: its config names no model_type, so it is not known what model it describes.")
    if model_type not in CONFIG_MAPPING:
        raise ModelError(f"{name}: {_unknown(model_type, values)}")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(dict(values))
    except Exception as error:  # config classes validate by raising what they like
        raise ModelError(f"{name}: its config is not that of a {model_type} model: {told(error)}.") from error
    if type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ModelError(
            f"{name} is a {model_type} model without a vision tower: mmswap needs an image-text-to-text model."
        )
    return config


def _unknown(model_type: str, values: dict[str, Any]) -> str:
    import transformers

    version = f"transformers {transformers.__version__} does not know the model type '{model_type}'"
    if values.get("auto_map"):
        return f"{version}, and the checkpoint's own code (--trust-remote-code) is not run for a calculation."
    return f"{version}: a newer one may (pip install -U transformers)."
