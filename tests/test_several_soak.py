"""Many requests with random lengths, pictures, faults and departures on a card that is too small: an answer is the one
that its request gets alone, about its own pictures; afterwards every weight and the ledger are as before."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from members import Asker, ask, circle
from test_several_windows import print_of

import mmswap
from mmswap.errors import DoesNotFit
from mmswap.several import Several

COLOURS = ("red", "blue", "green", "black")
REQUESTS = 45


class Struck(Exception):
    """A fault that was planted."""


class _Strikes:
    """A constraint that fails at a token."""

    def __init__(self, at: int) -> None:
        self._left = at

    def limit(self, scores: torch.Tensor) -> torch.Tensor:
        self._left -= 1
        if self._left < 0:
            raise Struck
        return scores

    def accept(self, token: int) -> None:
        pass


def kinds(runtime: Any) -> list[dict[str, Any]]:
    """Twelve requests: words alone, one picture, two (which make weights go out), sampled and greedy."""
    made: list[dict[str, Any]] = []
    for number, colour in enumerate(COLOURS):
        one, other = circle(colour, (640, 640)), circle(COLOURS[number - 1], (640, 640))
        made.append({"messages": ask("Which colour is it?", one), "tokens": 8})
        made.append({"messages": ask("And these?", one, other), "tokens": 5, "temperature": 1.5, "seed": number})
        made.append({"messages": ask(f"Number {number}."), "tokens": 4 + 9 * number, "temperature": 1.0, "seed": 7})
    return made


def test_nobody_is_harmed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = mmswap.load(card="sim:23MiB", dtype="float32")
    pool = runtime.encoder.pool
    assert pool is not None
    wanted = kinds(runtime)
    alone = [Asker(runtime, **kind).alone() for kind in wanted]
    assert len(set(alone)) > 6
    runtime.forget()
    runtime.encoder.cache.clear()
    before, claims = print_of(runtime), dict(runtime.card.claims)  # type: ignore[attr-defined]
    chance = random.Random(5)
    own = runtime.encoder.tower.run

    def run(*args: Any, **kwargs: Any) -> Any:
        if chance.random() < 0.1:
            raise Struck
        return own(*args, **kwargs)

    monkeypatch.setattr(runtime.encoder.tower, "run", run)
    several = Several(runtime, 3)
    members: list[tuple[int, Asker]] = []
    opened = 0
    for _ in range(6000):
        if len(members) < REQUESTS and chance.random() < 0.3:
            number = chance.randrange(len(wanted))
            member = Asker(runtime, **wanted[number])
            fate = chance.random()
            if fate < 0.15:
                member.leaves_after = chance.randrange(6)
            elif fate < 0.25:
                _plant(member, chance.randrange(5))
            members.append((number, member))
            several.join(member)
        if chance.random() < 0.02:
            runtime.encoder.cache.clear()
        several.turn()
        if len(members) == REQUESTS and not several.busy:
            break
    assert not several.busy
    answered = 0
    for number, member in members:
        assert member.over
        if member.answer is not None:
            answered += 1
            opened += member.answer.window.opened
            assert member.text == alone[number]
        elif member.error is not None:
            assert isinstance(member.error, (Struck, DoesNotFit)), member.error
        assert alone[number].startswith(member.text)
    assert answered > REQUESTS // 2
    assert opened > 3
    runtime.forget()
    assert print_of(runtime) == before
    assert dict(runtime.card.claims) == claims  # type: ignore[attr-defined]
    assert not any(unit.missing for unit in pool.ladder)
    assert runtime.spill().count == 0


def _plant(member: Asker, at: int) -> None:
    make = member.make

    def planted(place: Any) -> Any:
        stream = make(place)
        stream._constraint = _Strikes(at)
        return stream

    member.make = planted  # type: ignore[method-assign]
