"""Shipped data: well-known checkpoints by their published dimensions, each with the peak model of its vision tower.

    names()                              # ("gemma-3-4b", ...)
    read("Qwen/Qwen2.5-VL-7B-Instruct")  # what qwen2.5-vl-7b.json holds

Reads JSON and nothing else: no torch, no network. `scripts/build-profiles.py` writes the files.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from importlib import resources
from typing import Any

_SUFFIX = ".json"


class UnknownProfile(KeyError):
    """No shipped profile has that name.

    Attributes:
        name: as it was asked for.
        near: shipped names that look like it, the nearest first; may be empty.
    """

    def __init__(self, name: str, near: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.near = near


@cache
def names() -> tuple[str, ...]:
    """The names of all shipped profiles, sorted."""
    files = (entry.name for entry in resources.files(__package__).iterdir())
    return tuple(sorted(file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX)))


def read(name: str) -> dict[str, Any]:
    """The shipped profile of that name: a fresh dict, as its JSON file has it.

    Args:
        name: as in `names()`, in any case, words joined by `-`, `_` or blanks; or a hub id such as
            `google/gemma-3-4b-it`, with or without its owner.

    Raises:
        UnknownProfile: there is none; `near` holds names that look like it.
    """
    known = names()
    wanted = _plain(name)
    if wanted not in known:
        wanted = _by_hub_id().get(wanted, "")
    if not wanted:
        raise UnknownProfile(name, _near(name))
    return _load(wanted)


def _load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files(__package__) / f"{name}{_SUFFIX}").read_text("utf-8"))
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().casefold()).rpartition("/")[2]


@cache
def _by_hub_id() -> dict[str, str]:
    return {_plain(hub): name for name in names() for hub in _load(name)["hub"]}


def _near(name: str) -> tuple[str, ...]:
    plain = _plain(name)
    close = difflib.get_close_matches(plain, [*names(), *_by_hub_id()], n=5, cutoff=0.5)
    return tuple(dict.fromkeys(_by_hub_id().get(match, match) for match in close))
