"""The carried checkpoint is small, claims what it is tested on, and answers the example pictures right."""

import json
from pathlib import Path

import pytest
import torch
from chat import Chat, Turn, question
from evaluate import held_out
from PIL import Image
from questions import CAPABILITY, KINDS

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "mmswap" / "carried" / "seer"
PICTURES = ROOT / "examples" / "pictures"
ANSWERS = json.loads((PICTURES / "answers.json").read_text())


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(CHECKPOINT)


def test_the_folder_is_small_and_complete() -> None:
    names = {path.name for path in CHECKPOINT.iterdir()}
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) <= 12e6
    assert names >= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
        "chat_template.jinja", "generation_config.json",
    }  # fmt: skip


def test_the_evaluation_asks_every_kind() -> None:
    assert {item.kind for item in held_out(80, 1)} == set(KINDS)


@pytest.mark.parametrize("name", list(ANSWERS))
def test_example_pictures(chat: Chat, name: str) -> None:
    image = Image.open(PICTURES / name).convert("RGB")
    asked = ANSWERS[name]
    assert chat.answer([question(text, image) for text, _ in asked]) == [answer for _, answer in asked]


def test_it_says_what_it_can_do(chat: Chat) -> None:
    image = Image.open(PICTURES / "seven.png").convert("RGB")
    turns = [question("What can you do?"), question("Hello"), question("what can you do", image)]
    assert chat.answer(turns) == [CAPABILITY] * 3


def test_a_follow_up_question_in_one_chat(chat: Chat) -> None:
    image = Image.open(PICTURES / "red_circle.png").convert("RGB")
    messages = question("What shape is this?", image).messages
    messages += [{"role": "assistant", "content": "circle"}, {"role": "user", "content": "What colour is it?"}]
    assert chat.answer([Turn(messages, [image])]) == ["red"]


def test_weights_are_half_precision() -> None:
    from safetensors import safe_open

    with safe_open(CHECKPOINT / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
