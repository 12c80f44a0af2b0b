"""Real clients on a real port: the `openai` package, raw sockets that vanish, looks while a long prompt is read."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted import Gate, Scripted
from serving import CHAT, NEVER_ENDS, asks, listening, picture, shape, text, until

import mmswap
from mmswap.runtime import Runtime
from mmswap.server import ServerConfig, create_app

RED = shape("red")
MESSAGES: Any = [{"role": "user", "content": [picture(RED), text("What colour is the shape?")]}]


@pytest.fixture(scope="module")
def port(runtime: Runtime) -> Iterator[int]:
    with listening(create_app(ServerConfig(name="seer", api_keys=("k",)), lambda progress: runtime)) as port:
        until(lambda: _status(port) == 200)
        yield port


def _status(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_openai_package(port: int, runtime: Runtime) -> None:
    wanted = runtime.chat("What colour is the shape?", images=[RED])
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
    answer = client.chat.completions.create(model="seer", messages=MESSAGES, temperature=0)
    assert answer.choices[0].message.content == wanted.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == wanted.prompt_tokens
    again = [*MESSAGES, answer.choices[0].message.model_dump(), {"role": "user", "content": "Thanks."}]
    second = client.chat.completions.create(model="seer", messages=again, temperature=0, max_tokens=1)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= wanted.prompt_tokens
    with client.chat.completions.stream(model="seer", messages=MESSAGES, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == wanted.text
    assert client.models.list().data[0].id == "seer"
    assert client.completions.create(model="seer", prompt="a", max_tokens=2, temperature=0).usage is not None
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="seer", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="x").models.list()
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


def test_the_openai_package_waits_for_several_at_once(port: int) -> None:
    async def ask() -> list[Any]:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)

        async def one(colour: str) -> str:
            messages: Any = [{"role": "user", "content": [picture(shape(colour)), text("What colour is the shape?")]}]
            stream = await client.chat.completions.create(model="seer", messages=messages, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        return await asyncio.gather(*(one(colour) for colour in ("red", "blue", "red", "blue")))

    answers = asyncio.run(ask())
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("page", ["README.md", "docs/serving.md"])
def test_the_lines_of_curl_on_the_pages_work(runtime: Runtime, page: str, tmp_path: Path) -> None:
    text = Path(__file__).parents[2].joinpath(page).read_text(encoding="utf-8")
    lines = re.findall(r"^curl (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert lines
    app = create_app(ServerConfig(), lambda progress: runtime)
    with listening(app) as port:
        until(lambda: _status(port) == 200)
        for line in lines:
            ran = line.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            assert ran != line
            done = subprocess.run(["sh", "-c", ran], capture_output=True, cwd=tmp_path, timeout=60)
            answer = json.loads(done.stdout)
            assert answer["choices"][0]["message"]["content"]
            assert answer["choices"][0]["finish_reason"] == "stop"


def test_an_error_in_a_stream_reaches_the_openai_package(runtime: Runtime) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise mmswap.NonFiniteLogits("The model computed NaN.")

    app = create_app(ServerConfig(), lambda progress: Scripted(runtime, before=fail))
    with listening(app) as port:
        until(lambda: _status(port) == 200)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)
        stream = client.chat.completions.create(model="default", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="computed NaN"):
            list(stream)


def raw(port: int, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def post(port: int, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{CHAT}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_work_within_one_step(runtime: Runtime, stream: bool) -> None:
    scripted = Scripted(runtime, pieces=["x"] * 100_000)
    gate = scripted.before = Gate(at=5)
    app = create_app(ServerConfig(), lambda progress: scripted)
    with listening(app) as port:
        until(lambda: _status(port) == 200)
        connection = raw(port, asks("first", stream=stream))
        gate.reached.wait()
        waits = raw(port, asks("second", stream=stream))
        until(lambda: len(app.state.engine.waiting) == 1)
        waits.close()  # left before its turn came: never begun
        until(lambda: len(app.state.engine.waiting) == 0)
        work = app.state.engine.running[0]
        connection.close()
        until(work.gone)
        gate.open()
        until(lambda: not app.state.engine.running)
        assert scripted.steps == 6
        assert scripted.asked == ["first"]
        assert scripted.closed == 1
        scripted._pieces = ["fine"]
        assert post(port, asks("third"))["choices"][0]["message"]["content"] == "fine"


def test_clients_that_vanish_while_weights_are_lent_lose_nothing(runtime: Runtime) -> None:
    """Twelve cuts at odd times on a card where each picture opens a window; then every weight is what it was."""
    runtime.encoder.cache.clear()
    need = runtime.chat("Describe.", images=[shape(size=(400, 300))], max_new_tokens=1).window.need
    weights = sum(tensor.numel() * tensor.element_size() for tensor in runtime.model.parameters())
    small = mmswap.load(card=f"sim:{weights + need * 3 // 4}")
    names = {name: tensor.clone() for name, tensor in small.model.state_dict().items()}
    bodies = [
        asks([picture(shape(colour, size=(400 + 10 * number, 300))), text("Describe.")], max_tokens=40, stream=True)
        | {"logit_bias": NEVER_ENDS}
        for number, colour in enumerate(("red", "blue", "green", "yellow") * 3)
    ]
    app = create_app(ServerConfig(), lambda progress: small)
    with listening(app) as port:
        until(lambda: _status(port) == 200)
        wanted = post(port, {**bodies[0], "stream": False, "max_tokens": 6})
        assert wanted["mmswap"]["window"]["opened"]
        for number, body in enumerate(bodies[1:]):
            connection = raw(port, body)
            time.sleep(0.02 * number)
            connection.close()
        found = post(port, {**bodies[0], "stream": False, "max_tokens": 6})
        assert found["choices"] == wanted["choices"]
        until(lambda: not app.state.engine.running)
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "mmswap_spills_total 0.0" in metrics
    figures = dict(line.split(" ") for line in metrics.splitlines() if line.startswith("mmswap_") and "{" not in line)
    assert float(figures["mmswap_evicted_bytes_total"]) == float(figures["mmswap_restored_bytes_total"]) > 0
    now = small.model.state_dict()
    assert all((now[name] == tensor).all() for name, tensor in names.items())


def test_health_answers_while_a_long_prompt_is_read(port: int) -> None:
    body = asks([picture(shape(size=(800, 800))), text("word " * 1500)], max_tokens=1)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0, timeout=60)
    busy = threading.Thread(target=client.chat.completions.create, kwargs={"model": "seer", **body})
    busy.start()
    seen = 0
    while busy.is_alive():
        assert _status(port) == 200  # itself it waits for ten seconds at most
        seen += 1
        time.sleep(0.05)
    assert seen > 3


def test_the_picture_of_the_card_moves(port: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/events", headers={"Authorization": "Bearer k"})
    with urllib.request.urlopen(request, timeout=30) as events:
        first = json.loads(events.readline().removeprefix(b"data: "))
        assert first["state"] == "ready"
        assert first["card"]["free"] <= first["card"]["total"]
        assert first["card"]["weights"] > 0
        assert first["window"]["state"] == "closed"
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        busy = threading.Thread(
            target=client.chat.completions.create,
            kwargs={"model": "seer", **asks("x", max_tokens=60, logit_bias=NEVER_ENDS)},
        )
        busy.start()
        lines = (line for line in events if line.startswith(b"data: "))
        seen = next(one for line in lines if (one := json.loads(line[6:]))["queue"]["running"])
        assert seen["card"]["name"] == first["card"]["name"]
        busy.join()
