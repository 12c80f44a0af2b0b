"""Several answers of a loaded model at a time: each as alone, in fair turns, with its own memory, harming nobody."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from members import Asker, ask, circle, serve

import mmswap
from mmswap.errors import DoesNotFit, NonFiniteLogits, WindowMisuse
from mmswap.reuse import CLAIM
from mmswap.runtime import Runtime
from mmswap.several import Several


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return mmswap.load(card="sim:1GiB", dtype="float32")


@pytest.fixture(autouse=True)
def ledger(runtime: Runtime) -> Iterator[None]:
    """However a test ends, the card's ledger is as before."""
    runtime.forget()
    before = dict(runtime.card.claims)  # type: ignore[attr-defined]
    yield
    runtime.forget()
    assert dict(runtime.card.claims) == before  # type: ignore[attr-defined]


def askers(runtime: Runtime, count: int = 5, **more: Any) -> list[Asker]:
    colours = ("red", "blue", "green", "yellow", "black")
    pictures = [[circle(colour, (100 + 30 * index, 120))] for index, colour in enumerate(colours)]
    made = []
    for index in range(count):
        shown = pictures[index] if index % 2 == 0 else []
        made.append(Asker(runtime, ask("Which colour is it? " * (1 + index), *shown), 6 + 3 * index, **more))
    return made


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_texts_are_those_of_each_alone(runtime: Runtime, limit: int) -> None:
    members = askers(runtime)
    alone = [member.alone() for member in members]
    several = Several(runtime, limit)
    assert ("as one batch" in several.how) == (limit > 1)
    serve(several, members)
    assert [member.text for member in members] == alone
    assert [member.answer.text for member in members] == alone
    assert [member.answer.completion_tokens for member in members] == [6, 9, 12, 15, 18]
    assert several.held == 0


def test_a_long_answer_never_blocks_a_short_one(runtime: Runtime) -> None:
    diary: list[str] = []
    long = Asker(runtime, ask("Tell me of it."), 60, name="long", diary=diary)
    short = [Asker(runtime, ask(f"And {n}?"), 5, name=str(n), diary=diary) for n in range(4)]
    serve(Several(runtime, 2), [long, *short])
    expected = ["long begins", *(f"{n} {what}" for n in range(4) for what in ("begins", "ends")), "long ends"]
    assert diary == expected


def test_everybody_gets_a_token_a_round(runtime: Runtime) -> None:
    members = [Asker(runtime, ask(f"Number {n}"), 30) for n in range(3)]
    several = Several(runtime, 3)
    for member in members:
        several.join(member)
    for _ in range(3):
        several.turn()
    tokens = [seat.stream._generation.statistics.decode_tokens for seat in several._seats]  # type: ignore[union-attr]
    several.turn()
    after = [seat.stream._generation.statistics.decode_tokens for seat in several._seats]  # type: ignore[union-attr]
    assert [new - old for new, old in zip(after, tokens)] == [1, 1, 1]
    assert several.held > 0
    several.close()
    assert several.held == 0


@pytest.mark.parametrize("after", [1, 4])
def test_who_leaves_ends_within_a_token_and_the_others_do_not_notice(runtime: Runtime, after: int) -> None:
    members = askers(runtime, 4)
    alone = [member.alone() for member in members]
    members[2].leaves_after = after
    serve(Several(runtime, 4), members)
    assert members[2].answer is None
    assert members[2].over
    assert members[2].pieces == after
    for index in (0, 1, 3):
        assert members[index].text == alone[index]


def test_who_left_before_its_turn_is_never_begun(runtime: Runtime) -> None:
    members = askers(runtime, 3)
    members[1].left = True
    serve(Several(runtime, 1), members)
    assert [member.made for member in members] == [1, 0, 1]
    assert [member.over for member in members] == [True] * 3  # and is told so


@pytest.mark.parametrize("error", [NonFiniteLogits("The model computed NaN."), RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_is_its_owners_alone(runtime: Runtime, error: BaseException) -> None:
    class Failing:
        def __init__(self) -> None:
            self.left = 3

        def limit(self, scores: torch.Tensor) -> torch.Tensor:
            self.left -= 1
            if not self.left:
                raise error
            return scores

        def accept(self, token: int) -> None:
            pass

    members = askers(runtime, 4)
    alone = [member.alone() for member in members]
    make = members[1].make
    members[1].make = lambda place: _with(make(place), Failing())  # type: ignore[method-assign]
    serve(Several(runtime, 4), members)
    assert members[1].error is error
    assert [members[index].text for index in (0, 2, 3)] == [alone[index] for index in (0, 2, 3)]


def _with(stream: Any, constraint: Any) -> Any:
    stream._constraint = constraint
    return stream


def test_a_prompt_that_cannot_be_read_is_its_owners_affair(runtime: Runtime) -> None:
    members = askers(runtime, 3)
    alone = members[0].alone(), members[2].alone()
    members[1].messages = ask("word " * 6000)
    serve(Several(runtime, 3), members)
    assert "The prompt has" in str(members[1].error)
    assert (members[0].text, members[2].text) == alone


def test_nobody_else_has_the_runtime_meanwhile(runtime: Runtime) -> None:
    several = Several(runtime, 2)
    several.join(Asker(runtime, ask("Hello"), 20))
    several.turn()
    with pytest.raises(WindowMisuse, match="An answer is under way"):
        runtime.chat("Hello")
    several.close()
    assert runtime.chat("Hello", max_new_tokens=2).completion_tokens <= 2


def test_each_conversation_goes_on_with_what_it_left(runtime: Runtime) -> None:
    several = Several(runtime, 3)
    first = [Asker(runtime, ask("What is this?", circle(colour)), 8) for colour in ("red", "blue", "green")]
    serve(several, first)
    assert len(runtime.reuse) == 3
    assert runtime.card.claims[CLAIM] == runtime.reuse.nbytes > 0  # type: ignore[attr-defined]
    second = []
    for member in first:
        reply = {"role": "assistant", "content": member.text}
        second.append(Asker(runtime, [*member.messages, reply, *ask("Which colour?")], 8))
    alone = [member.alone() for member in second[::-1]][::-1]
    assert len(runtime.reuse) == 0  # who is alone keeps nobody else's
    serve(several, first_again := [Asker(runtime, member.messages, 8) for member in first])
    assert [member.text for member in first_again] == [member.text for member in first]
    serve(several, second[::-1])
    assert [member.text for member in second] == alone
    for one, other in zip(second, first):
        assert one.answer.reused_tokens >= other.answer.prompt_tokens


def test_no_cache_outlives_its_claim(runtime: Runtime) -> None:
    several = Several(runtime, 3)
    several._took = 1e9  # nobody gets a token while a prompt is read
    caches: list[Any] = []
    asked: list[Any] = []

    def note(_: int) -> None:
        for seat in several._seats:
            generation = seat.stream._generation if seat.stream is not None else None
            if generation is not None and generation.cache is not None:
                caches.append(weakref.ref(generation.cache))

    members = [Asker(runtime, ask(f"Number {n}", circle("red")), 12 - n) for n in range(3)]  # all end in one round
    asked += [weakref.ref(member) for member in members]
    serve(several, members, note)
    assert len({id(one()) for one in caches if one() is not None}) == len(runtime.reuse) == 3
    runtime.forget()
    del members
    gc.collect()
    assert [one() for one in caches if one() is not None] == []
    assert [one() for one in asked if one() is not None] == []  # and with them their pictures


def test_no_more_is_kept_than_there_are_seats(runtime: Runtime) -> None:
    several = Several(runtime, 2)
    serve(several, askers(runtime, 5))
    assert len(runtime.reuse) == 2
    several.join(Asker(runtime, ask("And now?"), 30))
    several.turn()
    assert len(runtime.reuse) == 1
    several.close()


def test_what_all_seats_have_room_for_is_said(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"Each may hold the context of {runtime.context} tokens." in Several(runtime, 3).how
    squeezed(runtime, monkeypatch, runtime.memory.size(runtime.context))
    said = Several(runtime, 3).how
    tokens = int(said.split("about ")[1].split()[0])
    room = runtime.memory.size(runtime.context)
    assert runtime.memory.size(tokens) + 2 * runtime.memory.kv_bytes(tokens) <= room
    assert runtime.memory.size(tokens + 1) + 2 * runtime.memory.kv_bytes(tokens + 1) > room
    assert Several(runtime, 1).how == "One answer at a time."


def squeezed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """Leave `spare` bytes of the card free, beside what is claimed now."""
    held = sum(runtime.card.claims.values())  # type: ignore[attr-defined]
    monkeypatch.setattr(runtime.card, "budget", held + spare)


def test_a_prompt_without_room_waits_and_one_that_never_fits_is_told(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Asker(runtime, ask("How many are there? " * 20), 40) for _ in range(3)]
    alone = members[0].alone()
    tokens = runtime.prepare(runtime.render(members[0].messages)).inputs["input_ids"].shape[1]
    room = runtime.memory.size(tokens + 60) + runtime.memory.kv_bytes(tokens) // 2
    squeezed(runtime, monkeypatch, room)
    most = []
    serve(several := Several(runtime, 3), members, lambda _: most.append(len(several._seats)))
    assert max(most) == 1
    assert [member.text for member in members] == [alone] * 3
    assert members[1].made > 1  # it was tried beside the first one
    runtime.forget()
    squeezed(runtime, monkeypatch, runtime.memory.kv_bytes(tokens))
    too_much = Asker(runtime, ask("How many are there? " * 20))
    serve(Several(runtime, 3), [too_much])
    assert isinstance(too_much.error, DoesNotFit)


def test_caches_that_cannot_grow_wait_for_each_other_and_the_youngest_gives_way(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [Asker(runtime, ask(f"Tell me of {n}."), 110) for n in range(3)]
    alone = [member.alone() for member in members]
    squeezed(runtime, monkeypatch, 3 * runtime.memory.kv_bytes(64) + runtime.memory.size(16))
    serve(Several(runtime, 3), members)
    assert [member.answer.finish_reason for member in members] == ["length"] * 3
    lengths = [member.answer.completion_tokens for member in members]
    assert lengths[2] < lengths[1] <= lengths[0] == 110
    for member, text in zip(members, alone):
        assert text.startswith(member.text)
    said = [decision for decision in members[2].answer.decisions if "no room for a longer KV cache" in decision]
    assert len(said) == 1
