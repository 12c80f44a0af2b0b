"""Writes the figures into the shipped profiles, from the config that each of them holds; or checks them.

    python scripts/build-profiles.py [NAME ...]            # all of profiles/*.json, or those named
    python scripts/build-profiles.py --check [NAME ...]    # writes nothing; exit code 1 where a file differs

What a person wrote stays: name, hub, source, parameters, config. All else is computed without weights and without a
card, so it comes out the same on every machine with the same torch and transformers (`versions`). `plan` is what a plan
of one picture of 1344x1344 has to know, on any card of `mmswap/card/known.json`, as `mmswap/sizing/memory.py` keeps it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import mmswap.profiles as profiles
from mmswap.blueprint import Blueprint
from mmswap.card.known import known_cards
from mmswap.profiling import profile_of
from mmswap.sizing import Wish, room_of, size_up
from mmswap.sizing.memory import Remembered
from mmswap.sizing.traced import traced

FOLDER = Path(__file__).parents[1] / "profiles"
GIVEN = ("name", "hub", "source", "parameters", "config")


def rebuilt(name: str) -> dict[str, Any]:
    """The whole content of a shipped profile, computed anew from what a person wrote in it."""
    stored = profiles.read(name)
    found = json.loads(json.dumps(profile_of(Blueprint.of(name)).to_json()))  # as it will be read
    given = {key: stored[key] for key in GIVEN}
    rest = {key: found[key] for key in found if key not in (*GIVEN, "format")}
    return {"format": found["format"], **given, **rest, "plan": answers(name)}


def answers(name: str) -> dict[str, Any]:
    """What plans for all known cards ask about a shipped model, and what a blueprint says."""
    blueprint = Blueprint.of(name)
    rooms = {card.total: room_of(card.name) for card in known_cards()}
    facts = Remembered(name, None, True, lambda: traced(blueprint, next(iter(rooms.values()))))
    for room in rooms.values():
        for quantize in (None, "int4"):
            size_up(facts, room, Wish(quantize=quantize))
    found: dict[str, Any] = json.loads(json.dumps(facts.answers))
    return found


def text_of(profile: dict[str, Any]) -> str:
    """Indented; each answer of the plan is one line."""
    lines = [f"  {json.dumps(question)}: {json.dumps(answer)}" for question, answer in profile["plan"].items()]
    head = json.dumps({**profile, "plan": {}}, ensure_ascii=False, indent=1)
    return head.replace('"plan": {}', '"plan": {\n' + ",\n".join(lines) + "\n }") + "\n"


def different(profile: dict[str, Any], stored: dict[str, Any]) -> Iterator[str]:
    """One line for each field that is not as stored."""
    for key in sorted({*profile, *stored}):
        mine, theirs = profile.get(key), stored.get(key)
        if mine != theirs:
            yield f"{key} is {json.dumps(mine)[:200]}, and stored is {json.dumps(theirs)[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    wrong = 0
    for name in chosen.names or profiles.names():
        profile = rebuilt(name)
        differences = list(different(profile, profiles.read(name)))
        wrong += bool(differences)
        print(name, "differs" if differences else "as stored", flush=True)
        for line in differences if chosen.check else ():
            print(f"  {line}", file=sys.stderr)
        if differences and not chosen.check:
            (FOLDER / f"{name}.json").write_text(text_of(profile), encoding="utf-8")
    return 1 if chosen.check and wrong else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
