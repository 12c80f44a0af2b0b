"""The carried model tells the truth about the example pictures, on every card alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import mmswap
from mmswap.runtime import Runtime

PICTURES = Path(__file__).parents[1] / "examples" / "pictures"
ANSWERS = json.loads((PICTURES / "answers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=["cpu", "sim:11MiB"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return mmswap.load(card=request.param)


@pytest.mark.parametrize("name", ANSWERS)
def test_every_example_picture_is_answered_right(runtime: Runtime, name: str) -> None:
    for question, expected in ANSWERS[name]:
        runtime.encoder.cache.clear()
        answer = runtime.chat(question, [PICTURES / name])
        assert answer.text == expected
        assert answer.finish_reason == "stop"
        assert answer.window.opened == (runtime.card.spec != "cpu")
        assert answer.window.spilled_bytes == 0


@pytest.mark.parametrize(("colour", "size"), [("red", (300, 200)), ("blue", (640, 480)), ("green", (97, 211))])
def test_a_plain_circle_that_nobody_trained_on(runtime: Runtime, colour: str, size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, "white")
    x, y, r = size[0] // 2, size[1] // 2, min(size) // 4
    ImageDraw.Draw(image).ellipse((x - r, y - r, x + r, y + r), fill=colour)
    assert runtime.chat("What colour is it?", [image]).text == colour
    assert runtime.chat("What shape is this?", [image]).text == "circle"


def test_it_says_what_it_can_do(runtime: Runtime) -> None:
    assert "picture" in runtime.chat("What can you do?").text


def test_a_follow_up_question_in_the_same_conversation(runtime: Runtime) -> None:
    picture = {"type": "image", "image": PICTURES / "red_circle.png"}
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": "What shape is this?"}]}]
    messages.append({"role": "assistant", "content": runtime.chat(messages).text})
    messages.append({"role": "user", "content": "What colour is it?"})
    assert runtime.chat(messages).text == "red"
