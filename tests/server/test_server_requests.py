"""Bodies as clients really send them, good and bad: each gets the right status, and the next good one is answered."""

from __future__ import annotations

import base64
import io
import json
import urllib.parse
from typing import Any

import pytest
from PIL import Image
from serving import CHAT, asks, chunks_of, error_of, strictly

from mmswap.server.body import parse
from mmswap.server.refusal import Refusal

JSON = {"content-type": "application/json"}
PNG = "data:image/png;base64,"


def encoded(kind: str) -> str:
    """A picture whose base64 has both special letters and needs padding."""
    image = Image.new("RGB", (60, 60))
    image.putdata([((x * 37) % 256, (y * 91) % 256, (x * y) % 256) for y in range(60) for x in range(60)])
    data = io.BytesIO()
    image.save(data, kind)
    raw = data.getvalue()
    while not (set("+/") <= set(found := base64.b64encode(raw).decode()) and found.endswith("=")):
        raw += b"\0"
    return found


S, JPEG = encoded("PNG"), encoded("JPEG")
SAME = {
    "plain": PNG + S,
    "space after the comma": PNG + " " + S,
    "wrapped lines": PNG + "\n".join(S[at : at + 76] for at in range(0, len(S), 76)),
    "wrapped lines, CRLF": PNG + "\r\n".join(S[at : at + 64] for at in range(0, len(S), 64)) + "\r\n",
    "tabs": PNG + S[:40] + "\t" + S[40:],
    "no padding": PNG + S.rstrip("="),
    "URL-safe letters": PNG + S.replace("+", "-").replace("/", "_"),
    "percent encoded": PNG + urllib.parse.quote(S, safe=""),
    "upper case": "DATA:IMAGE/PNG;BASE64," + S,
    "charset": "data:image/png;charset=utf-8;base64," + S,
    "name": "data:image/png;name=a.png;base64," + S,
    "no kind": "data:;base64," + S,
    "octets": "data:application/octet-stream;base64," + S,
    "a JPEG by its alias": "data:image/jpg;base64," + JPEG,
    "a JPEG called PNG": PNG + JPEG,
}
BAD_URIS = {
    "empty": PNG,
    "no comma": "data:image/png;base64" + S,
    "garbage": PNG + "!!!not base64!!!",
    "one letter": PNG + "A",
    "SVG": "data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'/%3E",
    "text": "data:text/plain;base64,aGVsbG8=",
    "bare base64": S,
    "nothing": "",
    "blanks": "   ",
    "NUL": PNG + "\0" + S,
    "cut off": PNG + S[: len(S) // 2],
}
ADDRESSES = [
    "/etc/passwd", "file:///etc/passwd", "C:\\Windows\\win.ini", "\\\\127.0.0.1\\share\\a.png", "../../etc/passwd",
    "ftp://127.0.0.1/a.png", "http://127.0.0.1:9/a.png", "http://localhost:9/a.png", "http://[::1]:9/a.png",
    "http://[::ffff:127.0.0.1]:9/a.png", "http://2130706433:9/a.png", "http://0x7f.1:9/a.png", "http://127.1:9/a.png",
    "http://169.254.169.254/latest/meta-data/", "http://0.0.0.0:9/a.png", "http://example.com@127.0.0.1:9/a.png",
    "gopher://127.0.0.1:9/", "https://example.org/cat.png",
]  # fmt: skip


def shows(url: str) -> dict[str, Any]:
    return asks([{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}], max_tokens=2)


def says(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return asks(content, **{"max_tokens": 2, **more})


def good(client: Any) -> None:
    assert client.post(CHAT, json=says()).status_code == 200


def test_one_picture_in_many_spellings(client: Any) -> None:
    tokens = {}
    for name, url in SAME.items():
        answer = client.post(CHAT, json=shows(url))
        assert answer.status_code == 200, (name, answer.text)
        tokens[name] = answer.json()["usage"]["prompt_tokens"]
    assert len(set(tokens.values())) == 1


@pytest.mark.parametrize("url", [pytest.param(url, id=name) for name, url in BAD_URIS.items()])
def test_what_is_no_picture_is_named_and_refused(client: Any, url: str) -> None:
    for stream in (False, True):
        error = error_of(client.post(CHAT, json={**shows(url), "stream": stream}), 400)
        assert error["message"].startswith("Picture 1 ")
        assert S[:30] not in error["message"]
    good(client)


def test_no_file_and_no_address_is_looked_at(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("something was opened")

    for name in ("socket.create_connection", "socket.getaddrinfo", "os.stat", "builtins.open"):
        monkeypatch.setattr(name, no)
    answers = [client.post(CHAT, json=shows(url)) for url in ADDRESSES]
    monkeypatch.undo()
    assert len({error_of(answer, 400)["code"] for answer in answers}) == 2  # not allowed, or no address at all


GOOD = {
    "text that mentions a data URI": says("Explain: <img src='data:image/png;base64,XXXX'>"),
    "a picture alone": says([{"type": "image_url", "image_url": {"url": PNG + S}}]),
    "a picture as a bare text": says([{"type": "image_url", "image_url": PNG + S}]),
    "detail": says([{"type": "image_url", "image_url": {"url": PNG + S, "detail": "low"}}]),
    "an empty system text": says(messages=[{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]),
    "a developer": says(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "hi"}]),
    "an answer without content": says(
        messages=[{"role": role, "content": said} for role, said in (("user", "a"), ("assistant", None), ("user", "b"))]
    ),
    "NUL in a text": says("a\0b"),
    "every switch as it is anyway": says(
        store=False, service_tier="auto", modalities=["text"], tool_choice="none", response_format={"type": "text"},
        user="ann", safety_identifier="b", n=1, stream=False, logprobs=False, top_k=-1, parallel_tool_calls=None,
    ),
    "whole numbers with a point": says(n=1.0, top_k=3.0, seed=2.0, max_tokens=2.0),
    "tiny temperature": says(temperature=1e-5),
    "tiny nucleus": says(top_p=1e-4, temperature=1),
    "many tokens": says(max_tokens=10**12),
    "no limit": says(max_tokens=None),
    "no stop": says(stop=[]),
    "two stops": says(stop=["a", "b"]),
    "its alias": says(model="default"),
}  # fmt: skip
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown part": (says([{"type": "video_url", "video_url": {"url": "x"}}]), "messages[0].content[0]"),
    "an unknown role": (says(messages=[{"role": "wizard", "content": "hi"}]), "messages[0]"),
    "no messages": ({"model": "default"}, "messages"),
    "no message": ({"messages": []}, "messages"),
    "messages as text": ({"messages": "hi"}, "messages"),
    "a number as content": (says(5), "messages[0].content"),
    "a name": (says(messages=[{"role": "user", "content": "x", "name": "ann"}]), "messages[0].name"),
    "a field that does not exist": (says(best_of_all=1), "best_of_all"),
    "a field that is not served": (says(reasoning_effort="high"), "reasoning_effort"),
    "storing": (says(store=True), "store"),
    "a keyword that the template lacks": (says(chat_template_kwargs={"x": 1}), "chat_template_kwargs.x"),
    "temperature below 0": (says(temperature=-1), "temperature"),
    "temperature as text": (says(temperature="hot"), "temperature"),
    "top_p 0": (says(top_p=0), "top_p"),
    "top_p above 1": (says(top_p=1.5), "top_p"),
    "no token": (says(max_tokens=0), "max_tokens"),
    "tokens below 0": (says(max_tokens=-5), "max_tokens"),
    "no answer": (says(n=0), "n"),
    "too many answers": (says(n=1000), "n"),
    "an empty stop": (says(stop=""), "stop"),
    "an empty stop among others": (says(stop=["a", ""]), "stop[1]"),
    "a number as stop": (says(stop=7), "stop"),
    "a seed as text": (says(seed="abc"), "seed"),
    "a seed beyond 64 bits": (says(seed=2**64), "seed"),
    "a bias for no token": (says(logit_bias={"99999999": 5}), "logit_bias"),
    "a bias for a word": (says(logit_bias={"hello": 5}), "logit_bias"),
    "top_logprobs alone": (says(top_logprobs=3), "top_logprobs"),
    "too much of a penalty": (says(frequency_penalty=2.5), "frequency_penalty"),
    "stream as text": (says(stream="yes"), "stream"),
    "stream_options without stream": (says(stream_options={"include_usage": True}), "stream_options"),
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in GOOD.items()])
def test_good_requests_are_answered(client: Any, body: dict[str, Any]) -> None:
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    strictly(answer.text)


@pytest.mark.parametrize(("body", "place"), [pytest.param(*case, id=name) for name, case in BAD.items()])
def test_bad_requests_name_the_field(client: Any, body: dict[str, Any], place: str) -> None:
    for stream in ({}, {"stream": True} if "stream" not in body and "stream_options" not in body else {}):
        error = error_of(client.post(CHAT, json={**body, **stream}), 400)
        assert error["param"] == place
        assert error["type"] == "invalid_request_error"


def test_half_a_character_is_refused_and_nothing_is_held(client: Any) -> None:
    raw = b'{"max_tokens":4,"messages":[{"role":"user","content":"a\\ud800b"}]}'
    for _ in range(3):
        assert "surrogate" in error_of(client.post(CHAT, content=raw, headers=JSON), 400)["message"]
    good(client)


def test_a_model_that_is_not_there(client: Any) -> None:
    assert error_of(client.post(CHAT, json=says(model="gpt-4")), 404)["code"] == "model_not_found"
    error_of(client.get("/v1/models/gpt-4"), 404)
    assert client.get("/v1/models/seer").json()["id"] == client.get("/v1/models").json()["data"][0]["id"] == "seer"


DAMAGED = [
    b"{not json", b'{"messages":[{"role":"user","content":"x"}], x}', b"[]", b"null", b"true", b"123", b'"text"', b"",
    b'{"model":"\xff\xfe","messages":[]}', b'{"model":"m","messages":[{"role":"us', b"[" * 20000, b"\xef\xbb\xbf{not",
    b'{"temperature":NaN,"messages":[{"role":"user","content":"x"}]}', b'{"seed":' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("raw", DAMAGED, ids=lambda raw: repr(raw[:20]))
def test_damaged_bodies(client: Any, raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        parse(raw)
    assert error_of(client.post(CHAT, content=raw, headers=JSON), 400)["message"] == refused.value.message
    good(client)


def test_a_byte_order_mark_is_no_fault(client: Any) -> None:
    assert client.post(CHAT, content=b"\xef\xbb\xbf" + json.dumps(says()).encode(), headers=JSON).status_code == 200


def test_errors_before_the_first_token_have_a_status_and_no_stream(client: Any) -> None:
    answer = client.post(CHAT, json=says(stream=True))
    assert chunks_of(answer.text)
    for body in (shows(BAD_URIS["garbage"]), says(n=0), says("word " * 3000)):
        answer = client.post(CHAT, json={**body, "stream": True})
        assert answer.headers["content-type"] == "application/json"
        error_of(answer, 400)
