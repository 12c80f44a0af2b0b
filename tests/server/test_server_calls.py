"""Tool calls in every form that is known: found however their text comes, recognised by template, forced by grammar."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from jinja2 import Environment
from serving import CHAT, asks, chunks_of, error_of, joined
from starlette.testclient import TestClient

import mmswap
from mmswap.llm.text import CALL_MARKS, Detokenizer
from mmswap.runtime import carried_model
from mmswap.server import ServerConfig, create_app
from mmswap.server.call_styles import STYLES, Style, style_of
from mmswap.server.calls import Call, Calls, Offer
from mmswap.server.facts import _behind
from mmswap.server.grammar import Grammars
from mmswap.server.refusal import Refusal
from mmswap.vision.processor import load_processor

BY_NAME = {style.name: style for style in STYLES}
DRAW = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["circle", "star é"]},
        "size": {"type": "integer", "minimum": 1, "maximum": 99},
        "label": {"type": "string"},
        "filled": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}, "maxItems": 2},
    },
    "required": ["kind", "size"],
    "additionalProperties": False,
}
TOOLS: Any = {"draw": DRAW, "look": None}
WANTED = ("draw", {"kind": "star é", "size": 5, "label": "5, {a}", "filled": True, "at": [1, 2]})
ONE = {
    "hermes": '<tool_call>\n{"name": "draw", "arguments": @}\n</tool_call>',
    "qwen-xml": "<tool_call>\n<function=draw>\n<parameter=kind>\nstar é\n</parameter>\n<parameter=size>\n5\n"
    "</parameter>\n<parameter=label>\n5, {a}\n</parameter>\n<parameter=filled>\ntrue\n</parameter>\n<parameter=at>\n"
    "[1, 2]\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>draw\n<arg_key>kind</arg_key>\n<arg_value>star é</arg_value>\n<arg_key>size</arg_key>\n"
    "<arg_value>5</arg_value>\n<arg_key>label</arg_key>\n<arg_value>5, {a}</arg_value>\n<arg_key>filled</arg_key>\n"
    "<arg_value>true</arg_value>\n<arg_key>at</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>",
    "gemma4": '<|tool_call>call:draw{kind:<|"|>star é<|"|>,size:5,label:<|"|>5, {a}<|"|>,filled:true,at:[1,2]}'
    "<tool_call|>",
    "functiongemma": "<start_function_call>call:draw{kind:<escape>star é<escape>,size:5,label:<escape>5, {a}<escape>,"
    "filled:true,at:[1,2]}<end_function_call>",
    "mistral": "[TOOL_CALLS]draw[ARGS]@",
    "mistral-list": '[TOOL_CALLS][{"name": "draw", "arguments": @}]',
    "lfm2": '<|tool_call_start|>[draw(kind="star é", size=5, label="5, {a}", filled=True, at=[1, 2])]<|tool_call_end|>',
    "phi": '<|tool_call|>[{"name": "draw", "arguments": @}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "draw", "arguments": @}]',
    "llama": '{"name": "draw", "parameters": @}',
    "python": "[draw(kind='star é', size=5, label='5, {a}', filled=true, at=[1, 2])]",
}
ONE = {name: text.replace("@", json.dumps(WANTED[1], ensure_ascii=False)) for name, text in ONE.items()}
TWO = {
    "mistral": ONE["mistral"] * 2,
    "mistral-list": ONE["mistral-list"][:-1] + ", " + ONE["mistral-list"][13:],
    "lfm2": ONE["lfm2"].replace(")]<", "), " + ONE["lfm2"][20:].replace("<|tool_call_end|>", "<")),
    "python": ONE["python"][:-1] + ", " + ONE["python"][1:],
    "llama": "<|python_tag|>" + ONE["llama"] + "; " + ONE["llama"],
    "phi": ONE["phi"].replace("}]<", "}, " + ONE["phi"][14:-15] + "]<"),
    "granite": ONE["granite"][:-1] + ", " + ONE["granite"][14:],
}


def found_in(style: Style, text: str, size: int = 1000) -> list[Any]:
    """Texts, joined, and calls as name and arguments."""
    calls = Calls(Offer(style, TOOLS))
    found = [one for at in range(0, len(text), size) for one in calls.push(text[at : at + size])] + calls.flush()
    merged: list[Any] = []
    for one in found:
        if isinstance(one, Call):
            assert len(one.id) == (style.id_letters or 29)
            merged.append((one.name, json.loads(one.arguments)))
        elif merged and isinstance(merged[-1], str):
            merged[-1] += one
        else:
            merged.append(one)
    assert calls.count == sum(isinstance(one, tuple) for one in merged)
    return merged


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_call_is_found_however_its_text_comes(name: str, size: int) -> None:
    style = BY_NAME[name]
    assert found_in(style, ONE[name], size) == [WANTED]
    assert found_in(style, TWO.get(name, ONE[name] + "\n" + ONE[name] + "\n"), size) == [WANTED, WANTED]
    assert found_in(style, "no call < here [a <tool", size) == ["no call < here [a <tool"]
    assert found_in(style, "", size) == []
    if style.open:
        assert found_in(style, "I look. " + style.open + ONE[name].removeprefix(style.open), size) == [
            "I look. ",
            WANTED,
        ]
    if style.close:
        assert found_in(style, ONE[name] + " so", size) == [WANTED, " so"]
        assert found_in(style, ONE[name].removesuffix(style.close), size) == [WANTED]


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_no_whole_call_stays_text(name: str) -> None:
    style = BY_NAME[name]
    cut = ONE[name][: len(ONE[name]) // 2]
    wrong = [style.open + "look" + style.close, style.open + "[1]" + style.close, style.open + "{}" + style.close]
    for text in (cut, *(one for one in wrong if one and name != "glm")):
        if name not in ("qwen-xml", "glm"):  # their parts can be told apart without an end
            assert found_in(style, text) == [text]
    assert found_in(style, style.open + style.close) == [style.open + style.close] * bool(style.open)


def test_nothing_is_run_and_nothing_hangs() -> None:
    python, gemma = BY_NAME["python"], BY_NAME["gemma4"]
    for text in (
        "[print(x=open('/etc/passwd'))]",
        "[f(x={1, 2})]",
        "[f(1)]",
        "[f(**a)]",
        "[f(x=1j)]",
        "[" * 5000,
        "[f(x=()",
    ):
        assert found_in(python, text) == [text]
    for inner in (
        "call:f{x:" + "[" * 5000,
        "call:f{x:1",
        "call:f{x}",
        "call:{}",
        'call:f{x:<|"|>a}',
        "call:f{,}",
        "call:f{x:1}y",
    ):
        assert found_in(gemma, f"<|tool_call>{inner}<tool_call|>") == [f"<|tool_call>{inner}<tool_call|>"]
    for name in ("hermes", "glm", "mistral", "llama"):
        deep = BY_NAME[name].open + '{"name": ' + "[" * 5000 + BY_NAME[name].close
        assert found_in(BY_NAME[name], deep) == [deep]
    nested = '<|tool_call>call:f{a:{b:[<|"|>x<|"|>,null],"c":1.5},d:word}<tool_call|>'
    assert found_in(gemma, nested) == [("f", {"a": {"b": ["x", None], "c": 1.5}, "d": "word"})]


CALL = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}@{% endfor %}{% endfor %}"
WRITES = {
    "hermes": "<tool_call>\n{{ c.function | tojson }}\n</tool_call>",
    "qwen-xml": "<tool_call>\n<function={{ c.function.name }}>\n</function>\n</tool_call>",
    "glm": "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>"
    "{% endfor %}</tool_call>",
    "gemma4": "<|tool_call>call:{{ c.function.name }}{}<tool_call|>",
    "functiongemma": "<start_function_call>call:{{ c.function.name }}{}<end_function_call>",
    "mistral": "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{}",
    "mistral-list": '[TOOL_CALLS][{"name": {{ c.function.name | tojson }}}]',
    "lfm2": "<|tool_call_start|>[{{ c.function.name }}()]<|tool_call_end|>",
    "phi": "<|tool_call|>[{{ c.function | tojson }}]<|/tool_call|>",
    "granite": "<|tool_call|>[{{ c.function | tojson }}]",
    "llama": '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
    "python": "[{{ c.function.name }}({% for k in c.function.arguments %}{{ k }}='x'{% endfor %})]",
}
SAYS = {
    "llama": 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.',
    "python": "Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]",
    "hermes": 'return <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    "qwen-xml": "reply as <tool_call>\n<function=example>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_form_is_known_by_what_the_template_writes(name: str) -> None:
    template = Environment().from_string("{{ tools | tojson }}" + CALL.replace("@", WRITES[name]))
    tools = [{"type": "function", "function": {"name": "probe", "parameters": {}}}]
    asked = {"role": "user", "content": "x"}
    call = {"id": "abcdefghi", "function": {"name": "probe", "arguments": {"kind": "x"}}}
    shown = template.render(messages=[asked], tools=tools)
    called = template.render(messages=[asked, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=tools)
    assert style_of(_behind(shown, called), shown) is BY_NAME[name]


@pytest.mark.parametrize("name", SAYS)
def test_a_form_is_known_by_the_words_that_ask_for_it(name: str) -> None:
    assert style_of("", f'{SAYS[name]} [{{"name": "probe", "description": "x", "parameters": {{}}}}]') is BY_NAME[name]
    assert style_of("", "Answer.", "{{ messages }}") is None


class Picked:
    """The carried tokenizer with the marks of every form as tokens of their own."""

    def __init__(self) -> None:
        self.tokenizer = load_processor(carried_model()).tokenizer
        self.tokenizer.add_special_tokens({"additional_special_tokens": sorted(CALL_MARKS)})
        ends = frozenset([int(self.tokenizer.eos_token_id)])
        self.facts: Any = SimpleNamespace(tokenizer=self.tokenizer, vocabulary=len(self.tokenizer), end_ids=ends)
        self.grammars = Grammars(self.facts)

    def walk(self, style: Style, tools: Any, seed: int) -> str:
        """A text of random tokens among those that may come next."""
        grammar, pick, text = self.grammars.call(style, tools, "tools")(), random.Random(seed), []
        spelled = Detokenizer(self.tokenizer)
        for step in range(3000):
            allowed = np.flatnonzero(torch.isfinite(grammar.limit(torch.zeros(self.facts.vocabulary))).numpy()).tolist()
            ending = [token for token in allowed if token in self.facts.end_ids]
            closing = [
                token for token in allowed if step > 40 and self.tokenizer.decode([token]).strip(" ")[:1] in '"]}<,)\n'
            ]
            token = pick.choice(ending or closing or allowed)
            if token in self.facts.end_ids:
                return "".join([*text, spelled.flush()])
            grammar.accept(token)
            text.append(spelled.push(token))
        raise AssertionError(f"no end: {''.join(text)[:300]!r}")


@pytest.fixture(scope="module")
def picked() -> Picked:
    return Picked()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_forced_call_is_one_and_follows_its_schema(name: str, picked: Picked) -> None:
    seen = set()
    for seed in range(4):
        text = picked.walk(BY_NAME[name], TOOLS if name != "python" else {"draw": DRAW}, seed)
        ((called, arguments),) = found_in(BY_NAME[name], text)
        seen.add(called)
        if called == "draw":
            assert set(arguments) <= set(DRAW["properties"]), text
            assert arguments["kind"] in ("circle", "star é"), text
            assert 1 <= arguments["size"] <= 99
            assert isinstance(arguments.get("label", ""), str)
            assert isinstance(arguments.get("filled", True), bool)
            assert all(isinstance(one, int) for one in arguments.get("at", []))
        else:
            assert called == "look"
    assert "draw" in seen or name != "python"


@pytest.mark.parametrize(
    ("name", "schema", "says"),
    [
        ("qwen-xml", {"oneOf": [{}]}, "oneOf"),
        ("glm", {"properties": {"x": {"type": "string", "pattern": "a+"}}}, "pattern"),
        ("glm", {"properties": {"x": {"type": ["string", "null"]}}}, "cannot tell a text"),
        ("gemma4", {"properties": {"a b": {}}}, "cannot spell the name"),
        ("python", {"properties": {}, "required": ["x"]}, "has no schema"),
        ("hermes", {"type": "no such type"}, "schema"),
    ],
)
def test_what_a_form_cannot_follow_is_refused(name: str, schema: Any, says: str, picked: Picked) -> None:
    with pytest.raises(Refusal, match=says) as refused:
        picked.grammars.call(BY_NAME[name], {"draw": schema}, "tools")
    assert refused.value.status == 400


TEMPLATE = """{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}
{{ m.content }}{% for call in m.tool_calls or [] %}{% set call = call.function %}
<tool_call>
<function={{ call.name }}>
{% for key, value in call.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_call_in_a_form_of_its_own_goes_out_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "seer"
    shutil.copytree(carried_model(), folder)
    Path(folder, "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    app = create_app(ServerConfig(), lambda progress: mmswap.load(folder, card="cpu"))
    schema = {**DRAW, "properties": {name: DRAW["properties"][name] for name in ("kind", "size")}}  # type: ignore[index]
    tools = [{"type": "function", "function": {"name": "draw", "parameters": schema}}]
    body = asks("hi", tools=tools, tool_choice="required", max_tokens=200)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.engine.loaded.wait()
        (choice,) = client.post(CHAT, json=body).json()["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert call["function"]["name"] == "draw"
        assert json.loads(call["function"]["arguments"])["kind"] in ("circle", "star é")
        chunks = chunks_of(client.post(CHAT, json={**body, "stream": True}).text)
        deltas = [one for chunk in chunks for part in chunk["choices"] for one in part["delta"].get("tool_calls", [])]
        assert [one["function"] for one in deltas] == [call["function"]]
        assert joined(chunks) == ""
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        messages = [*body["messages"], choice["message"], result]
        free = {**body, "tool_choice": "auto", "max_tokens": 1}
        named = client.post(CHAT, json={**free, "messages": [*messages[:-1], {**result, "name": "draw"}]})
        assert named.json()["usage"] == client.post(CHAT, json={**free, "messages": messages}).json()["usage"]
        wrong = client.post(CHAT, json={**free, "messages": [*messages[:-1], {**result, "name": "look"}]})
        assert error_of(wrong, 400)["param"] == "messages[2].name"
