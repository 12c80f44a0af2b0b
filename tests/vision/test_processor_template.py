"""Where the chat template comes from, and the form of content that it is given (kind C15 of the cases)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processor_folders import CHATML, make_folder

from mmswap.errors import UserError
from mmswap.vision.processor import Processor, load_processor

HI = {"type": "text", "text": "hi"}
USER = {"role": "user", "content": "hi"}
SYSTEM = [{"type": "text", "text": "Be terse."}, {"type": "text", "text": "Use bullets."}]
LISTS_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}{% if m['content'][0]['type'] == 'image' %}:{% else %}: "
    "{% endif %}{% for c in m['content'] %}{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>{% endfor %}"
)
TEXTS_ONLY = "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + TEXTS_ONLY
)


def write_json(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**old, **values}))


def folder_with(folder: Path, **places: str) -> Path:
    """A folder whose templates print the place that they stand in."""
    make_folder(folder, "qwen2_vl", template=None)
    for place, text in places.items():
        if place == "jinja":
            (folder / "chat_template.jinja").write_text(text)
        elif place == "named":
            named = [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": text}]
            write_json(folder, "tokenizer_config.json", chat_template=named)
        else:
            names = {"json": "chat_template.json", "tokenizer": "tokenizer_config.json", "own": "processor_config.json"}
            write_json(folder, names[place], chat_template=text)
    return folder


@pytest.mark.parametrize(
    ("places", "winner"),
    [
        (["jinja"], "jinja"),
        (["json"], "json"),
        (["tokenizer"], "tokenizer"),
        (["named"], "named"),
        (["own"], "own"),
        (["jinja", "tokenizer"], "jinja"),
        (["jinja", "json", "named"], "jinja"),
        (["json", "tokenizer"], "json"),
    ],
)
def test_which_template_wins(places: list[str], winner: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", **{place: f"{place} {{{{ messages[0]['content'] }}}}" for place in places})
    assert load_processor(folder).render([{"role": "user", "content": "hi"}]) == f"{winner} hi"


def test_a_missing_template_is_named_and_not_guessed(tmp_path: Path) -> None:
    processor = load_processor(folder_with(tmp_path / "model"))
    with pytest.raises(UserError, match=r"no chat template: none of chat_template\.jinja, chat_template\.json"):
        processor.render([{"role": "user", "content": "hi"}])


def test_named_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model")
    write_json(folder, "tokenizer_config.json", chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(UserError, match="none is called 'default'"):
        load_processor(folder)


@pytest.fixture(scope="module", params=["both", "lists only", "texts only"])
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Processor:
    template = {"both": CHATML, "lists only": LISTS_ONLY, "texts only": TEXTS_ONLY}[request.param]
    return load_processor(make_folder(tmp_path_factory.mktemp("template") / "model", "qwen2_vl", template=template))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": SYSTEM}, USER],
        [{"role": "developer", "content": SYSTEM}, USER],
        [USER, {"role": "tool", "content": SYSTEM}, USER],
        [{"role": "user", "content": SYSTEM}, {"role": "assistant", "content": None}, USER],
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": [{"type": "image"}, HI]}],
        [{"role": "system", "content": ""}, {"role": "user", "content": [*SYSTEM, HI]}],
    ],
)
def test_every_form_of_content_reaches_the_prompt(messages: list[dict[str, Any]], processor: Processor) -> None:
    text = processor.render(messages)
    for wanted in ("Be terse.", "Use bullets.", "hi", "<|im_start|>"):
        assert wanted in text
    for wrong in ("[{", "None", "'type'", "developer", "[object"):
        assert wrong not in text
    parts = [part for message in messages for part in (message["content"] or []) if isinstance(part, dict)]
    assert text.count("<|image_pad|>") == sum(part["type"] == "image" for part in parts)


def test_pictures_stay_where_they_stand(processor: Processor) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}, {"type": "image"}]
    text = processor.render([{"role": "user", "content": parts}])
    places = [text.index("one"), text.index("<|image_pad|>"), text.index("two"), text.rindex("<|image_pad|>")]
    assert places == sorted(places)


def test_halves_of_a_control_token_in_two_parts_never_meet(processor: Processor) -> None:
    halves = [{"type": "text", "text": "a <|im_"}, {"type": "text", "text": "end|> b"}]
    for parts in (halves, [*halves, {"type": "image"}], [{"type": "image"}, *halves]):
        text = processor.render([{"role": "user", "content": parts}])
        assert "a <|im_\nend|> b" in text


def test_the_callers_messages_are_not_modified(processor: Processor) -> None:
    messages = [{"role": "developer", "content": [dict(part) for part in SYSTEM]}, {"role": "user", "content": "x"}]
    before = json.dumps(messages)
    processor.render(messages)
    assert json.dumps(messages) == before


def test_a_refusal_of_the_template_is_one_sentence(tmp_path: Path) -> None:
    processor = load_processor(make_folder(tmp_path / "strict", "qwen2_vl", template=STRICT))
    assert "hi" in processor.render([{"role": "user", "content": "hi"}])
    with pytest.raises(UserError, match=r"refuses these messages: System role not supported\.$"):
        processor.render([{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}])


def test_keywords_reach_the_template(tmp_path: Path) -> None:
    template = "{{ 'thinking' if enable_thinking else 'plain' }}{{ '!' if add_generation_prompt }}"
    processor = load_processor(make_folder(tmp_path / "keywords", "qwen2_vl", template=template))
    messages = [{"role": "user", "content": "hi"}]
    assert processor.render(messages, enable_thinking=True) == "thinking!"
    assert processor.render(messages, add_generation_prompt=False) == "plain"
