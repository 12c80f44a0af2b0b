"""Turns of a chat through the runtime: a second question about a picture reads its own words; nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import mmswap
from mmswap.chat import Conversation
from mmswap.cli.report import summary
from mmswap.config import SamplingConfig
from mmswap.reuse import CLAIM
from mmswap.runtime import Runtime

GREEDY = SamplingConfig(max_new_tokens=12)


def circle(colour: str) -> Image.Image:
    image = Image.new("RGB", (150, 120), "white")
    ImageDraw.Draw(image).ellipse((40, 30, 100, 90), fill=colour)
    return image


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return mmswap.load(card="sim:1GiB")


def ask(runtime: Runtime, chat: Conversation, text: str, *pictures: Image.Image, reuse: bool = True) -> Any:
    chat.ask(text, pictures)
    stream = runtime.stream(chat.messages, sampling=GREEDY, reuse=reuse)
    pieces = list(stream)
    assert "".join(pieces) == stream.answer.text
    chat.reply(stream.answer.text)
    return stream.answer


def test_the_second_question_reads_only_its_own_words(runtime: Runtime) -> None:
    chat, fresh = Conversation(), Conversation()
    first = ask(runtime, chat, "What is this?", circle("red"))
    assert first.reused_tokens == 0
    assert runtime.card.claims[CLAIM] > 0  # type: ignore[attr-defined]
    second = ask(runtime, chat, "Which colour is it?")
    assert second.reused_tokens >= first.prompt_tokens
    assert second.images[0].tokens == first.images[0].tokens
    assert second.images[0].encode_ms == 0
    assert f"| {second.reused_tokens} of {second.prompt_tokens} tokens kept |" in summary(second)
    assert "kept" not in summary(first)
    assert not second.window.opened
    assert "turn before" in second.window.reason
    said = f"{second.reused_tokens} of {second.prompt_tokens} tokens are in the KV cache"
    assert any(said in decision for decision in second.decisions)
    runtime.forget()
    for text, pictures in (("What is this?", [circle("red")]), ("Which colour is it?", [])):
        wanted = ask(runtime, fresh, text, *pictures, reuse=False)
    assert wanted.text == second.text
    assert wanted.reused_tokens == 0
    assert CLAIM not in runtime.card.claims  # type: ignore[attr-defined]


def test_another_picture_with_the_same_words_is_looked_at(runtime: Runtime) -> None:
    answers = {}
    for colour in ("red", "blue"):
        chat = Conversation()
        answer = ask(runtime, chat, "Which colour is the circle?", circle(colour))
        assert answer.reused_tokens < answer.images[0].tokens
        answers[colour] = answer.text
    runtime.forget()
    for colour, text in answers.items():
        assert ask(runtime, Conversation(), "Which colour is the circle?", circle(colour), reuse=False).text == text


def test_a_new_picture_in_a_later_turn_is_encoded_and_the_prompt_read_whole(runtime: Runtime) -> None:
    chat = Conversation()
    ask(runtime, chat, "What is this?", circle("red"))
    answer = ask(runtime, chat, "And this?", circle("green"))
    assert answer.reused_tokens == 0
    assert len(answer.images) == 2
    assert answer.images[1].encode_ms > 0
    runtime.forget()


def test_a_turn_that_ends_early_or_fails_leaves_the_ledger_right(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Conversation()
    chat.ask("What is this?", [circle("red")])
    stream = runtime.stream(chat.messages, sampling=GREEDY, reuse=True)
    next(stream)
    stream.close()
    assert runtime.card.claims[CLAIM] > 0  # type: ignore[attr-defined]
    monkeypatch.setattr(runtime, "reserve", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(mmswap.errors.DoesNotFit):
        list(runtime.stream(chat.messages, sampling=GREEDY, reuse=True))
    assert not {"KV cache", CLAIM} & set(runtime.card.claims)  # type: ignore[attr-defined]


def test_what_is_kept_gives_way_where_the_rest_is_long(runtime: Runtime) -> None:
    chat = Conversation()
    ask(runtime, chat, "What is this?", circle("red"))
    before, runtime.memory._chunk = runtime.memory._chunk, 16
    try:
        answer = ask(runtime, chat, "Is there a " + "very " * 40 + "small square beside it?")
    finally:
        runtime.memory._chunk = before
    assert answer.reused_tokens == 0
    assert any("read whole" in decision for decision in answer.decisions)
    runtime.forget()
