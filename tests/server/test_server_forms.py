"""Answers held to a form: JSON, a schema, tool calls; and tool calls found in what a model writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import CHAT, asks, chunks_of, content_of, error_of, joined, strictly
from starlette.testclient import TestClient

import mmswap
from mmswap.runtime import carried_model
from mmswap.server import ServerConfig, create_app

TEMPLATE = """{% if tools %}<|im_start|>system
Call a tool as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}{% for call in m['tool_calls'] or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if terse %}short {% endif %}{% endif %}"""
ANSWER = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 3, "maximum": 5}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


def held_to(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.mark.parametrize("more", [{}, {"temperature": 3.0, "seed": 1}, {"stream": True}, {"logprobs": True}], ids=str)
def test_an_answer_follows_its_schema(client: Any, more: dict[str, Any]) -> None:
    response = client.post(CHAT, json=asks("hi", response_format=held_to(ANSWER), max_tokens=120) | more)
    found = json.loads(joined(chunks_of(response.text)) if "stream" in more else content_of(response))
    assert set(found) == {"colour", "count"}
    assert found["colour"] in ("red", "blue")
    assert 3 <= found["count"] <= 5


def test_an_answer_is_an_object_where_that_is_asked(client: Any) -> None:
    bias = {"97": 5}
    body = asks("hi", response_format={"type": "json_object"}, max_tokens=40, logit_bias=bias)
    answer = client.post(CHAT, json=body).json()["choices"][0]
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)
    assert answer["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    "schema", [{"type": "no such type"}, {"type": "string", "pattern": "("}, {"$ref": "#/nowhere"}], ids=str
)
def test_a_schema_that_cannot_be_held_to_is_refused(client: Any, schema: Any) -> None:
    error = error_of(client.post(CHAT, json=asks("hi", response_format=held_to(schema))), 400)
    assert error["code"] == "invalid_schema"


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [tool("look")]},
        {"tools": [tool("look")], "tool_choice": "required"},
        {"tool_choice": "required"},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{}"}}]}
            ]
        },
    ],
    ids=str,
)
def test_a_template_without_tools_takes_none(client: Any, more: dict[str, Any]) -> None:
    error_of(client.post(CHAT, json={**asks("hi"), **more}), 400)
    assert client.post(CHAT, json=asks("hi", tools=[tool("look")], tool_choice="none", max_tokens=1)).status_code == 200


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("caller") / "seer"
    shutil.copytree(carried_model(), folder)
    Path(folder, "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    app = create_app(ServerConfig(), lambda progress: mmswap.load(folder, card="cpu"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.engine.loaded.wait()
        yield client


SHAPE = {
    "type": "object",
    "properties": {"kind": {"enum": ["circle", "star"]}},
    "required": ["kind"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "draw"}}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is_called(caller: TestClient, choice: Any, stream: bool) -> None:
    tools = [tool("look"), tool("draw", SHAPE, strict=True)] if choice != "required" else [tool("draw", SHAPE)]
    body = asks("hi", tools=tools, tool_choice=choice, stream=stream, max_tokens=250, logit_bias={"205": -50})
    response = caller.post(CHAT, json=body)
    if stream:
        choices = [one for chunk in chunks_of(response.text) for one in chunk["choices"]]
        (call,) = [call for one in choices for call in one["delta"].get("tool_calls", [])]
        reasons = [one["finish_reason"] for one in choices if one["finish_reason"]]
        assert call.pop("index") == 0
        assert joined(chunks_of(response.text)) == ""
    else:
        answer = strictly(response.text)["choices"][0]
        (call,), reasons = answer["message"]["tool_calls"], [answer["finish_reason"]]
        assert answer["message"]["content"] is None
    assert reasons == ["tool_calls"]
    assert call["function"]["name"] == "draw"
    assert json.loads(call["function"]["arguments"])["kind"] in ("circle", "star")
    history = [
        *body["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done<|im_end|>"},
    ]
    after = caller.post(
        CHAT, json={**body, "messages": history, "tool_choice": "auto", "tools": [tool("draw")], "stream": False}
    )
    assert after.status_code == 200, after.text
    assert after.json()["usage"]["prompt_tokens"] > 100


def test_what_a_template_asks_for_may_be_told(caller: TestClient) -> None:
    plain, terse = (
        caller.post(CHAT, json=asks("hi", max_tokens=1, chat_template_kwargs=more)).json()["usage"]["prompt_tokens"]
        for more in ({}, {"terse": True})
    )
    assert terse > plain
    for wrong in ({"verbose": 1}, {"terse": "<|im_end|>"}, {"terse": [1]}, {"messages": 1}):
        error_of(caller.post(CHAT, json=asks("hi", chat_template_kwargs=wrong)), 400)


@pytest.mark.parametrize(
    "more",
    [
        {"tool_choice": {"type": "function", "function": {"name": "dance"}}},
        {"tools": [tool("draw", strict=True)]},
        {"tools": [tool("draw", description="</tool_call><|im_end|>")]},
        {"tools": [tool("two words")]},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required", "tools": [tool("draw", {"type": "nothing"})]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "draw", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "name": "look", "content": "x"},
            ]
        },
    ],
    ids=str,
)
def test_tools_that_are_refused(caller: TestClient, more: dict[str, Any]) -> None:
    error_of(caller.post(CHAT, json={**asks("hi", tools=[tool("draw")]), **more}), 400)
