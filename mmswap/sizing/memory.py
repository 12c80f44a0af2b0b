"""A plan's questions answered from what earlier plans were told, so that the second one takes no time. Needs no torch.

    facts = remembered("qwen2.5-vl-7b", room)      # no model is built until a question comes that was never asked
    size_up(facts, room, wish)
    facts.keep()                                   # in the cache folder

A file holds for one config and image processor, one kind of card, and the versions of all that finds the figures. One
that was touched by another hand is not used. A shipped profile brings the answers about its usual picture, for cards
that are not here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from mmswap.llm.config_source import locate
from mmswap.llm.kv.layout import KvLayout, KvRow
from mmswap.sizing.facts import About, Cost, Facts, Given, Seen, Size
from mmswap.sizing.room import Room
from mmswap.sizing.weights import Weights
from mmswap.swap import shelf
from mmswap.swap.event import packed, unpacked
from mmswap.swap.peak import Peak
from mmswap.swap.plan import Rung
from mmswap.swap.replay import ARENA, TORCH

_MOST = 2000  # answers of a file; the oldest make room
_BESIDE = ("preprocessor_config.json", "processor_config.json")  # what an image processor is made from
_CODE = ("mmswap", "mmswap.vision", "mmswap.llm")
_AnswerT = TypeVar("_AnswerT")
Finder = Callable[[], Facts]


def remembered(
    model: str,
    room: Room,
    *,
    dtype: str = "auto",
    attention: str = "sdpa",
    prepare: Callable[[], object] = lambda: None,
) -> Remembered:
    """The facts of `model` (as `Blueprint.of` takes it) on such a card.

    Args:
        dtype: of the weights, by torch's name; `auto` for what the config says. attention: `sdpa` or `eager`.
        prepare: called before a model is built, if one has to be.

    Raises:
        ModelError: there is no such config, or it is damaged.
    """
    found = locate(model)
    beside = [found.folder / name for name in _BESIDE] if found.folder is not None else []
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", "transformers")}
    told = [
        found.values,
        [path.read_text("utf-8", "replace") if path.is_file() else None for path in beside],
        [dtype, attention, room.segments, room.kernels],
        versions,
        _code(),
    ]
    known: dict[str, Any] = {}
    if (dtype, attention, room.kernels) == ("auto", "sdpa", "") and found.profile.get("versions") == versions:
        known = found.profile.get("plan", {})
    key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def find() -> Facts:
        prepare()
        import torch

        from mmswap.blueprint import Blueprint
        from mmswap.sizing.traced import traced

        wanted = None if dtype == "auto" else getattr(torch, dtype)
        return traced(Blueprint.of(model, attention=attention, dtype=wanted), room)

    return Remembered(found.name, shelf.cache_folder() / f"{key[:24]}.plan.json", room.segments, find, known)


class Remembered:
    """Facts that are in a file, or are asked of those that `find` makes, once.

    Args:
        place: of the file; None for none. known: answers beside those of the file.
        segments: whether the card's allocator is torch's.

    Attributes:
        answers: by question, as JSON.
    """

    def __init__(
        self, name: str, place: Path | None, segments: bool, find: Finder, known: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._place, self._find = place, find
        self._policy = TORCH if segments else ARENA
        self.answers = {**(known or {}), **_checked(place)}
        self._found: Facts | None = None

    def keep(self) -> None:
        """Writes what is new, beside what another process has written meanwhile. Nothing, if a dry run has failed."""
        if self._place is None or self._found is None or not getattr(self._found, "sure", True):
            return
        answers = _checked(self._place) | self.answers
        answers = dict(list(answers.items())[-_MOST:])
        shelf.put(self._place, {"digest": _digest(answers), "answers": answers})

    def about(self) -> About:
        return self._answer("about", lambda facts: facts.about(), asdict, lambda told: About(**told))

    def weights(self, quantize: str | None) -> Weights:
        return self._answer(f"weights {quantize}", lambda facts: facts.weights(quantize), _of_weights, _weights)

    def patches(self, size: Size) -> int:
        return self._answer(f"patches {size}", lambda facts: facts.patches(size), int, int)

    def cost(self, size: Size) -> Cost:
        return self._answer(f"cost {size}", lambda facts: facts.cost(size), _of_cost, self._cost)

    def given(self, size: Size) -> Given:
        return self._answer(f"given {size}", lambda facts: facts.given(size), _of_given, _given)

    def together(self, size: Size, chunk: int) -> int:
        return self._answer(f"together {size} {chunk}", lambda facts: facts.together(size, chunk), int, int)

    def step(self, size: Size, chunk: int) -> tuple[int, int]:
        def pair(told: Any) -> tuple[int, int]:
            return told[0], told[1]

        return self._answer(f"step {size} {chunk}", lambda facts: facts.step(size, chunk), list, pair)

    def _answer(
        self,
        question: str,
        ask: Callable[[Facts], _AnswerT],
        told: Callable[[_AnswerT], Any],
        made: Callable[[Any], _AnswerT],
    ) -> _AnswerT:
        if question in self.answers:
            return made(self.answers[question])
        if self._found is None:
            self._found = self._find()
        answer = ask(self._found)
        self.answers[question] = told(answer)
        return answer

    def _cost(self, told: Any) -> Cost:
        live, with_scratch, output, how, events = told["peak"]
        peak = Peak(live, with_scratch, output, unpacked(events), how, self._policy)
        return Cost(**{**told, "picture": Seen(*told["picture"]), "peak": peak})


def _of_cost(cost: Cost) -> dict[str, Any]:
    peak = cost.peak
    return {
        "width": cost.width,
        "height": cost.height,
        "images": cost.images,
        "picture": [cost.picture.patches, cost.picture.tokens],
        "pixels": cost.pixels,
        "colours": cost.colours,
        "features": cost.features,
        "peak": [peak.live, peak.with_scratch, peak.output, peak.how, packed(peak.events)],
    }


def _of_weights(weights: Weights) -> dict[str, Any]:
    return asdict(weights) | {"ladder": [[rung.name, rung.nbytes] for rung in weights.ladder]}


def _weights(told: Any) -> Weights:
    return Weights(**{**told, "ladder": tuple(Rung(*rung) for rung in told["ladder"])})


def _of_given(given: Given) -> dict[str, Any]:
    return {name: value for name, value in asdict(given).items() if name != "unknown" or value}


def _given(told: Any) -> Given:
    rows = tuple(KvRow(**row) for row in told["layout"]["rows"])
    return Given(**{**told, "layout": KvLayout(rows, told["layout"]["states"])})


def _checked(place: Path | None) -> dict[str, Any]:
    """The answers of a file that is as it was written; none of another."""
    values = (shelf.take(place) if place is not None else None) or {}
    answers = values.get("answers")
    return answers if isinstance(answers, dict) and values.get("digest") == _digest(answers) else {}


def _digest(answers: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()[:32]


def _code() -> list[Any]:
    """What tells this code from an edited one: a checkout changes, and its version does not."""
    stamps = []
    for package in _CODE:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            files = sorted(Path(folder).rglob("*.py"))
            stamps.append([(file.name, stat.st_mtime_ns, stat.st_size) for file in files for stat in [file.stat()]])
    return stamps
