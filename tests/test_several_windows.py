"""Pictures of one while others write: they go on where nothing was evicted for it, else wait unharmed; and one window
serves all pictures that wait."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from members import Asker, ask, circle, serve

import mmswap
from mmswap.errors import DoesNotFit
from mmswap.runtime import Runtime
from mmswap.several import Several

LARGE = (640, 640)


@pytest.fixture(scope="module")
def roomy() -> Runtime:
    return mmswap.load(card="sim:1GiB", dtype="float32")


@pytest.fixture(scope="module")
def tight() -> Runtime:
    """Every window gives two units up."""
    return mmswap.load(card="sim:64MiB", dtype="float32", mmproj_swap_layers=2)


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """However a test ends, every weight is as before, and the ledger too."""
    name = "tight" if "tight" in request.fixturenames else "roomy"
    runtime = request.getfixturevalue(name)
    runtime.encoder.cache.clear()
    runtime.forget()
    weights, claims = print_of(runtime), dict(runtime.card.claims)
    yield
    runtime.forget()
    assert print_of(runtime) == weights
    assert dict(runtime.card.claims) == claims
    assert not any(unit.missing for unit in runtime.encoder.pool.ladder)


def print_of(runtime: Runtime) -> str:
    digest = hashlib.sha256()
    for name, tensor in runtime.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


class Watch:
    """How many tokens others had while a tower ran, and how often a window gave weights up."""

    def __init__(self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, others: list[Asker]) -> None:
        self.during: list[int] = []
        own = runtime.encoder.tower.run

        def run(*args: Any, **kwargs: Any) -> Any:
            before = sum(other.pieces for other in others)
            found = own(*args, **kwargs)
            self.during.append(sum(other.pieces for other in others) - before)
            return found

        monkeypatch.setattr(runtime.encoder.tower, "run", run)


def test_others_go_on_while_a_picture_is_encoded_in_free_memory(
    roomy: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = [Asker(roomy, ask(f"Tell me of {n}."), 60) for n in range(2)]
    shown = Asker(roomy, ask("Which colour?", circle("red", LARGE)), 8)
    alone = [one.alone() for one in (*writing, shown)]
    roomy.encoder.cache.clear()
    watch = Watch(roomy, monkeypatch, writing)
    serve(Several(roomy, 3), [*writing, shown])
    assert len(watch.during) == 1
    assert watch.during[0] >= 2
    assert [one.text for one in (*writing, shown)] == alone
    assert not shown.answer.window.opened
    (image,) = shown.answer.images
    assert image.encode_ms > 0
    roomy.encoder.cache.clear()
    roomy.forget()
    again = Asker(roomy, shown.messages, 8)
    serve(Several(roomy, 3), [again])
    assert image.peak_measured == again.answer.images[0].peak_measured  # what others took is not the encoder's


@pytest.mark.parametrize("options", [{"card": "cpu"}, {"card": "sim:64MiB", "no_mmproj_offload": True}], ids=str)
def test_others_go_on_beside_a_tower_on_the_processor(
    roomy: Runtime, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = mmswap.load(dtype="float32", **options)
    writing, shown = Asker(runtime, ask("Tell me."), 60), Asker(runtime, ask("Which?", circle("red", LARGE)), 4)
    alone = [writing.alone(), shown.alone()]
    runtime.encoder.cache.clear()
    watch = Watch(runtime, monkeypatch, [writing])
    serve(Several(runtime, 2), [writing, shown])
    assert watch.during[0] >= 1
    assert [writing.text, shown.text] == alone
    (image,) = shown.answer.images
    assert image.peak_measured == runtime.chat("Again?", [circle("blue", LARGE)]).images[0].peak_measured


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_an_answer_about_a_picture_ends_while_anothers_is_encoded(roomy: Runtime, tokens: int) -> None:
    short = Asker(roomy, ask("Which colour?", circle("green", LARGE)), tokens)
    shown = Asker(roomy, ask("Which colour?", circle("red", LARGE)), 8)
    alone = short.alone(), shown.alone()
    roomy.encoder.cache.clear()
    several = Several(roomy, 2)
    several.join(short)
    several.turn()
    serve(several, [shown])
    assert (short.error, shown.error) == (None, None)
    assert (short.text, shown.text) == alone


def test_others_wait_while_weights_are_out_and_go_on_unharmed(tight: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = [Asker(tight, ask(f"Tell me of {n}."), 40) for n in range(2)]
    shown = Asker(tight, ask("Which colour?", circle("red", LARGE)), 8)
    alone = [one.alone() for one in (*writing, shown)]
    tight.encoder.cache.clear()
    tight.forget()
    watch = Watch(tight, monkeypatch, writing)
    serve(Several(tight, 3), [*writing, shown])
    assert watch.during == [0]
    assert shown.answer.window.opened
    assert shown.answer.window.restored_bytes == shown.answer.window.evicted_bytes > 0
    assert [one.text for one in (*writing, shown)] == alone


def test_an_encoder_without_room_beside_others_waits_for_them(tight: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than running on the processor; alone it goes down its ladder as ever."""
    writing = [Asker(tight, ask(f"Tell me of {n}."), 10) for n in range(2)]
    shown = Asker(tight, ask("Which colour?", circle("red", LARGE)), 4)
    alone = [one.alone() for one in (*writing, shown)]
    tight.encoder.cache.clear()
    tight.forget()
    several, own = Several(tight, 3), tight.encoder._in_window
    beside: list[int] = []

    def full(*args: Any) -> Any:
        beside.append(len(several._seats) - 1)
        if beside[-1]:
            raise DoesNotFit("The vision encoder", 2, 1, "wait")
        return own(*args)

    monkeypatch.setattr(tight.encoder, "_in_window", full)
    serve(several, [*writing, shown])
    assert beside == [2, 1, 1, 0]  # what an answer left when it ended is given up before anybody waits again
    assert shown.made == 3
    assert shown.answer.window.opened
    assert [one.text for one in (*writing, shown)] == alone


def test_pictures_that_wait_together_share_a_window(tight: Runtime) -> None:
    colours = ("red", "blue", "green", "black")
    members = [Asker(tight, ask("Which colour is it?", circle(colour, LARGE)), 8) for colour in colours]
    alone = [member.alone() for member in members]
    tight.encoder.cache.clear()
    tight.forget()
    before = tight.measurements().windows
    serve(Several(tight, 4), members)
    assert tight.measurements().windows == before + 1
    assert [member.text for member in members] == alone
    opened = [member.answer.window.opened for member in members]
    assert opened == [True, False, False, False]
    for member in members:
        assert member.answer.images[0].encode_ms > 0
        assert member.answer.images[0].peak_measured or member is not members[0]
    assert all(peak.peak_measured for peak in tight.measurements().peaks)  # 0 was among them for each guest
    assert any("3 more prompts" in said for said in members[0].answer.decisions)
    assert "in the window of another prompt" in members[2].answer.window.reason


def test_what_a_shared_window_held_for_others_is_not_learnt_as_the_encoders(
    tight: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture was said to take 54 % more than predicted: a larger one's peak, and features that were kept for it."""
    learnt: list[tuple[int, int]] = []
    forecast = tight.encoder.forecast
    monkeypatch.setattr(forecast, "learn", lambda job, measured, say: learnt.append((forecast.expected(job), measured)))
    sizes = [(160, 160), (640, 480), (320, 224)]
    members = [Asker(tight, ask("Which colour is it?", circle("red", size)), 4) for size in sizes]
    serve(Several(tight, 3), members)
    [(expected, measured)] = learnt
    assert measured == expected
    told = members[0].answer.images[0]
    assert told.peak_measured == told.peak_predicted == measured


def test_the_same_picture_twice_is_encoded_once(tight: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Asker(tight, ask(text, circle("red", LARGE)), 6) for text in ("Which colour?", "What is it?")]
    watch = Watch(tight, monkeypatch, [])
    serve(Several(tight, 2), members)
    assert len(watch.during) == 1
    assert all(member.answer is not None for member in members)


@pytest.mark.parametrize("when", ["roomy", "tight"])
def test_who_leaves_while_its_picture_is_encoded_ends_there(
    when: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime: Runtime = request.getfixturevalue(when)
    other = Asker(runtime, ask("Tell me."), 30)
    alone = other.alone()
    shown = Asker(runtime, ask("Which colour?", circle("blue", LARGE)), 8)
    looks: list[int] = []
    own = shown.gone

    def gone() -> bool:
        looks.append(len(looks))
        return own() or len(looks) > 3

    shown.gone = gone  # type: ignore[method-assign]
    ran = []
    run = runtime.encoder.tower.run
    monkeypatch.setattr(runtime.encoder.tower, "run", lambda *a, **k: (run(*a, **k), ran.append(1))[0])
    several = Several(runtime, 2)
    serve(several, [other, shown])
    assert ran == []  # the tower was left between two layers
    assert shown.over
    assert shown.answer is None
    assert other.text == alone


def test_a_tower_that_fails_for_one_leaves_the_others(tight: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Asker(tight, ask("Which colour?", circle(colour, LARGE)), 6) for colour in ("red", "blue", "green")]
    alone = [member.alone() for member in members]
    tight.encoder.cache.clear()
    tight.forget()
    run, calls = tight.encoder.tower.run, []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) in (2, 4):  # the second picture, in the first one's window and again in its own
            raise ValueError("no such picture")
        return run(*args, **kwargs)

    monkeypatch.setattr(tight.encoder.tower, "run", fails)
    serve(Several(tight, 3), members)
    assert isinstance(members[1].error, ValueError)
    assert [members[0].text, members[2].text] == [alone[0], alone[2]]
