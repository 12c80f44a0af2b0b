"""Requests in turn: who waits, who is turned away, and that nobody's hundred requests come before another's one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from scripted import Gate, Scripted
from serving import CHAT, asks, chunks_of, content_of, error_of, joined, picture, shape, until
from starlette.testclient import TestClient

from mmswap.errors import DoesNotFit, NonFiniteLogits
from mmswap.server import ServerConfig, create_app
from mmswap.server.waiting import Full, Waiting


@dataclass(eq=False)
class Item:
    owner: str
    number: int = 0
    nbytes: int = 0


def test_owners_take_turns() -> None:
    waiting: Waiting[Item] = Waiting(10, 1000)
    for owner, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)):
        waiting.put(Item(owner, number))
    order = [f"{item.owner}{item.number}" for item in iter(lambda: waiting.take(0), None)]
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_the_queue_is_bounded_by_number_and_by_bytes() -> None:
    waiting: Waiting[Item] = Waiting(2, 1000)
    first = Item("a", nbytes=2000)  # alone it may be larger
    waiting.put(first)
    with pytest.raises(Full):
        waiting.put(Item("b", nbytes=1))
    assert waiting.drop(first)
    assert not waiting.drop(first)
    assert len(waiting) == 0
    for _ in range(2):
        waiting.put(Item("a"))
    with pytest.raises(Full):
        waiting.put(Item("b"))
    assert len(waiting.close()) == 2
    with pytest.raises(Full):
        waiting.put(Item("a"))
    assert waiting.take() is None


def test_who_comes_while_a_worker_waits_does_not_wait() -> None:
    waiting: Waiting[Item] = Waiting(0, 0)
    with pytest.raises(Full):
        waiting.put(Item("a"))
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(waiting.take, 10)
        until(lambda: not _refuses(waiting))
        found = taken.result()
        assert found is not None
        assert found.owner == "a"


def _refuses(waiting: Waiting[Item]) -> bool:
    try:
        waiting.put(Item("a"))
    except Full:
        return True
    return False


class Served:
    """An application around a scripted runtime, with clients in threads."""

    def __init__(self, client: TestClient, scripted: Scripted, pool: ThreadPoolExecutor) -> None:
        self.client, self.scripted, self._pool = client, scripted, pool
        self.engine = client.app.state.engine  # type: ignore[attr-defined]

    def ask(self, words: str, **more: Any) -> Any:
        return self._pool.submit(self.client.post, CHAT, json=asks(words, **more))


@pytest.fixture
def served(runtime: Any) -> Iterator[Served]:
    scripted = Scripted(runtime)
    app = create_app(ServerConfig(parallel=1, max_waiting=3, stuck_after=0.05), lambda progress: scripted)
    with TestClient(app, base_url="http://127.0.0.1") as client, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()
        yield Served(client, scripted, pool)
        if isinstance(scripted.before, Gate):  # where a test failed
            scripted.before.open()


def test_requests_beyond_the_queue_are_told_when_to_come_again(served: Served) -> None:
    gate = served.scripted.before = Gate()
    first = served.ask("0")
    gate.reached.wait()
    waiting = []
    for number in range(3):
        waiting.append(served.ask(str(number + 1), user="ann" if number < 2 else "bob"))
        until(lambda: len(served.engine.waiting) == len(waiting))
    refused = served.ask("4").result()
    assert error_of(refused, 429)["code"] == "queue_full"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    until(lambda: served.client.get("/health").status_code == 503)  # nothing moves for longer than `stuck_after`
    assert served.client.get("/health").json()["status"] == "stuck"
    metrics = served.client.get("/metrics").text
    assert "mmswap_requests_waiting 3.0" in metrics
    assert "mmswap_requests_running 1.0" in metrics
    gate.open()
    assert [content_of(one.result()) for one in (first, *waiting)] == ["abc"] * 4
    assert served.scripted.asked == ["0", "1", "3", "2"]  # bob's one is not behind both of ann's
    assert served.client.get("/health").json() == {"status": "ok", "model": "ready", "progress": 1.0}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NonFiniteLogits("The model computed NaN."), 500, "non_finite_logits"),
        (DoesNotFit("The prompt", 2, 1, "use less"), 503, "insufficient_memory"),
        (RuntimeError("a secret place"), 500, "internal_error"),
        (KeyboardInterrupt(), 500, "internal_error"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("at", [0, 2])
def test_errors_before_and_after_the_first_piece(
    served: Served, error: BaseException, status: int, code: str, at: int
) -> None:
    def fail(number: int) -> None:
        if number == at:
            raise error

    served.scripted.before = fail
    assert error_of(served.ask("x").result(), status)["code"] == code
    streamed = served.ask("x", stream=True, stream_options={"include_usage": True}).result()
    if at == 0:
        assert error_of(streamed, status)["code"] == code
    else:
        chunks = chunks_of(streamed.text)
        assert joined(chunks[:-1]) == "ab"
        assert set(chunks[-1]) == {"error"}
        assert chunks[-1]["error"]["code"] == code
    served.scripted.before = int
    assert content_of(served.ask("y").result()) == "abc"
    assert served.scripted.closed == 3


def test_a_server_that_stops_says_so_to_everybody(served: Served) -> None:
    gate = served.scripted.before = Gate(at=1)
    running, streaming = served.ask("0"), None
    gate.reached.wait()
    waits = served.ask("1")
    until(lambda: len(served.engine.waiting) == 1)
    served.engine.stop()
    for one in (running, waits):
        assert error_of(one.result(), 503)["code"] == "stopping"
    gate.open()
    assert served.engine.stop(10)
    assert served.scripted.steps == 2  # the one that was under way, and none after it
    assert error_of(served.ask("2").result(), 503)["code"] == "stopping"
    assert served.client.get("/health").json()["status"] == "stopping"
    assert streaming is None


def test_decoded_pictures_that_wait_are_bounded(runtime: Any) -> None:
    scripted = Scripted(runtime)
    gate = scripted.before = Gate()
    app = create_app(ServerConfig(parallel=1, max_waiting_bytes=100_000), lambda progress: scripted)
    with TestClient(app, base_url="http://127.0.0.1") as client, ThreadPoolExecutor() as pool:
        app.state.engine.loaded.wait()
        body = asks([picture(shape(size=(150, 150))), {"type": "text", "text": "?"}])
        under_way = [pool.submit(client.post, CHAT, json=body)]
        gate.reached.wait()
        under_way.append(pool.submit(client.post, CHAT, json=body))
        until(lambda: len(app.state.engine.waiting) == 1)
        error_of(client.post(CHAT, json=body), 429)
        gate.open()
        assert [content_of(one.result()) for one in under_way] == ["abc"] * 2


def test_loading_is_told_with_its_progress(runtime: Any) -> None:
    half, go_on = threading.Event(), threading.Event()

    def slowly(progress: Any) -> Any:
        progress(5, 10)
        half.set()
        go_on.wait(30)
        return Scripted(runtime)

    with TestClient(create_app(ServerConfig(), slowly), base_url="http://127.0.0.1") as client:
        half.wait()
        assert client.get("/health").status_code == 503
        assert client.get("/health").json() == {"status": "loading", "model": "loading", "progress": 0.5}
        for answer in (client.post(CHAT, json=asks("hi")), client.get("/v1/models")):
            assert "50%" in error_of(answer, 503)["message"]
            assert answer.headers["retry-after"] == "2"
        go_on.set()
        until(lambda: client.get("/health").status_code == 200)
        assert content_of(client.post(CHAT, json=asks("hi"))) == "abc"


def test_an_idle_model_is_given_up_and_comes_back(runtime: Any) -> None:
    loads = []

    class Once(Scripted):
        """Its pool and watch are the real runtime's, and stay."""

        encoder = type("Encoder", (), {"pool": None})
        watch = type("Watch", (), {"close": staticmethod(lambda: None)})

    def load(progress: Any) -> Any:
        loads.append(Once(runtime))
        return loads[-1]

    with TestClient(create_app(ServerConfig(idle_unload=0.05), load), base_url="http://127.0.0.1") as client:
        engine = client.app.state.engine  # type: ignore[attr-defined]
        until(lambda: engine.state == "unloaded")
        assert engine.runtime is None
        assert client.get("/health").json()["model"] == "unloaded"
        assert "mmswap_model_loaded 0.0" in client.get("/metrics").text
        assert client.get("/v1/models").status_code == 200
        assert content_of(client.post(CHAT, json=asks("hi"))) == "abc"
        assert len(loads) == 2


def test_a_model_that_cannot_be_loaded(caplog: pytest.LogCaptureFixture) -> None:
    def fails(progress: Any) -> Any:
        raise DoesNotFit("The model", 2, 1, "use a smaller one")

    with TestClient(create_app(ServerConfig(), fails), base_url="http://127.0.0.1") as client:
        client.app.state.engine.loaded.wait()  # type: ignore[attr-defined]
        assert "use a smaller one" in error_of(client.post(CHAT, json=asks("hi")), 503)["message"]
        assert client.get("/health").json()["status"] == "failed"
