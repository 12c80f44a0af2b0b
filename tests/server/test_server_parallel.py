"""Several requests at a time over HTTP: answers as alone, none waits for another's end, and figures of all that run."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scripted import Gate, Scripted
from serving import (
    CHAT,
    NEVER_ENDS,
    asks,
    chunks_of,
    content_of,
    error_of,
    joined,
    listening,
    picture,
    shape,
    strictly,
    text,
    until,
)
from starlette.testclient import TestClient

import mmswap
from mmswap.runtime import Runtime
from mmswap.server import ServerConfig, create_app

HERE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def exact() -> Runtime:
    """In float32, in which greedy ids do not depend on who is beside them."""
    return mmswap.load(card="sim:64MiB", dtype="float32")


@pytest.fixture
def served(exact: Runtime) -> Iterator[Any]:
    app = create_app(ServerConfig(parallel=3), lambda progress: exact)
    with TestClient(app, base_url=HERE) as client, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()

        def ask(body: dict[str, Any], path: str = CHAT) -> Any:
            return pool.submit(client.post, path, json=body)

        client.ask, client.engine = ask, app.state.engine  # type: ignore[attr-defined]
        yield client


def bodies() -> list[dict[str, Any]]:
    made = []
    for number, colour in enumerate(("red", "blue", "green", "black", "yellow")):
        content = [picture(shape(colour)), text("Which colour?")] if number % 2 == 0 else f"Number {number}?"
        made.append(asks(content, max_tokens=10 + 8 * number, logit_bias=NEVER_ENDS, stream=number > 2))
    return made


def words(response: Any) -> str:
    if "event-stream" in response.headers["content-type"]:
        return joined(chunks_of(response.text))
    return content_of(response)


def test_answers_at_a_time_are_those_in_turn(served: Any) -> None:
    in_turn = [words(served.ask(body).result()) for body in bodies()]
    seen: set[int] = set()
    done = threading.Event()
    watcher = threading.Thread(target=lambda: [seen.add(len(served.engine.running)) for _ in iter(done.is_set, True)])
    watcher.start()
    together = [served.ask(body) for body in bodies()]
    found = [words(one.result()) for one in together]
    done.set()
    watcher.join()
    assert found == in_turn
    assert max(seen) == 3
    until(lambda: not served.engine.running)


def test_a_short_answer_does_not_wait_for_a_long_one(served: Any) -> None:
    long = served.ask(asks("go on", max_tokens=600, logit_bias=NEVER_ENDS))
    until(lambda: served.engine.held > 0)
    content_of(served.ask(asks("briefly", max_tokens=3)).result())
    assert not long.done()
    assert strictly(long.result().text)["usage"]["completion_tokens"] == 600


def test_lists_of_texts_and_several_answers_share_the_seats(served: Any) -> None:
    body = {"prompt": ["a b c", "d e f", "g h"], "temperature": 2.0, "seed": 3, "n": 2, "max_tokens": 9}
    body |= {"logit_bias": NEVER_ENDS}
    whole = served.ask(body, "/v1/completions").result().json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    alone = [served.ask({**body, "prompt": prompt}, "/v1/completions").result().json() for prompt in body["prompt"]]
    texts = [choice["text"] for one in alone for choice in one["choices"]]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert whole["usage"]["completion_tokens"] == 54


def test_requests_beyond_seats_and_queue_are_turned_away(exact: Runtime) -> None:
    scripted = Scripted(exact)
    gate = scripted.before = Gate()
    app = create_app(ServerConfig(parallel=2, max_waiting=1), lambda progress: scripted)
    with TestClient(app, base_url=HERE) as client, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()
        first = pool.submit(client.post, CHAT, json=asks("0"))
        gate.reached.wait()
        more = []
        for number in range(2):  # one more seat is free, and one may wait
            more.append(pool.submit(client.post, CHAT, json=asks(str(number))))
            until(lambda: len(app.state.engine.waiting) == len(more))
        refused = client.post(CHAT, json=asks("too many"))
        assert error_of(refused, 429)["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        gate.open()
        assert [content_of(one.result()) for one in (first, *more)] == ["abc"] * 3


def test_stopping_ends_all_that_are_under_way(exact: Runtime) -> None:
    app = create_app(ServerConfig(parallel=3), lambda progress: exact)
    engine = app.state.engine
    with TestClient(app, base_url=HERE) as client, ThreadPoolExecutor() as pool:
        engine.loaded.wait()
        body = asks("go on", max_tokens=1500, logit_bias=NEVER_ENDS)
        under_way = [pool.submit(client.post, CHAT, json=body) for _ in range(5)]
        until(lambda: len(engine.running) == 3 and len(engine.waiting) == 2)
        assert engine.stop(5)
        for one in under_way:
            assert error_of(one.result(), 503)["code"] == "stopping"
        assert engine.held == 0
        assert not engine.running
    exact.forget()
    assert not any("KV cache" in label for label in exact.card.claims)  # type: ignore[attr-defined]


def test_what_people_watch_counts_all_that_run(exact: Runtime) -> None:
    app = create_app(ServerConfig(parallel=2), lambda progress: exact)
    with listening(app) as port, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()
        assert "Up to 2 answers at a time, their tokens as one batch." in app.state.engine.how

        def post() -> Any:
            body = asks("go on", max_tokens=150, logit_bias=NEVER_ENDS)
            request = urllib.request.Request(f"http://127.0.0.1:{port}{CHAT}", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=30) as events:
            posted = [pool.submit(post) for _ in range(2)]
            lines = (json.loads(line[6:]) for line in events if line.startswith(b"data: "))
            both = next(one for one in lines if one["queue"]["running"] == 2 and one["card"]["kv"])
            metrics = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert both["card"]["kv"] > 0
        assert "mmswap_requests_running" in metrics
        assert {one.result()["choices"][0]["finish_reason"] for one in posted} == {"length"}
        until(lambda: not app.state.engine.running)
        assert app.state.engine.held == 0


def test_an_idle_server_gives_up_its_model_with_all_that_conversations_left() -> None:
    loads: list[Runtime] = []

    def load(progress: Any) -> Runtime:
        loads.append(mmswap.load(card="sim:64MiB"))
        return loads[-1]

    app = create_app(ServerConfig(parallel=2, idle_unload=0.3), load)
    with TestClient(app, base_url=HERE) as client, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()
        both = [pool.submit(client.post, CHAT, json=asks(words, max_tokens=3)) for words in ("a", "b")]
        texts = [content_of(one.result()) for one in both]
        until(lambda: app.state.engine.state == "unloaded")
        assert len(loads[0].reuse) == 0
        again = [content_of(client.post(CHAT, json=asks(words, max_tokens=3))) for words in ("a", "b")]
        assert again == texts
    assert len(loads) == 2
