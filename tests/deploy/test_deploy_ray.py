"""Two replicas behind Ray Serve, and captions by Ray Data: as one process answers (extra `mmswap[ray]`)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from serving import CHAT, NEVER_ENDS, asks, chunks_of, error_of, joined, picture, shape, text, until

pytest.importorskip("ray.serve")
pytest.importorskip("ray.data")

import httpx
import ray
from ray import serve

from mmswap.config import RunConfig
from mmswap.deploy import ray as deploy
from mmswap.deploy.captioning import CaptionJob, captions_here
from mmswap.deploy.cluster import begin, share_of_card
from mmswap.deploy.ray_captions import captions_by_ray
from mmswap.errors import OptionError
from mmswap.server import ServerConfig

HERE = RunConfig(card="cpu")
SECONDS = "mmswap_first_piece_seconds_sum"
COLOURS = ("red", "blue", "green", "yellow")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    begin(4)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def client(cluster: None) -> Iterator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ServerConfig(port=port, api_keys=("k",))
    deploy.run(config=HERE, server=server, replicas=2, block=False)
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=600, headers={"authorization": "Bearer k"}
    ) as client:
        yield client
    serve.shutdown()


def colour_of(client: httpx.Client, colour: str) -> str:
    body = asks([picture(shape(colour)), text("What colour is the shape?")])
    return str(client.post(CHAT, json=body).json()["choices"][0]["message"]["content"])


def test_two_replicas_answer_as_one_server_does(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok", "model": "ready", "progress": 1.0}
    assert client.get("/v1/models").json()["data"][0]["id"] == "seer"
    assert "<html" in client.get("/").text
    with ThreadPoolExecutor(8) as together:
        assert list(together.map(lambda colour: colour_of(client, colour), COLOURS * 4)) == list(COLOURS * 4)

    def counted() -> set[float]:
        shown = (client.get("/metrics").text.splitlines() for _ in range(8))
        return {float(line.split()[1]) for lines in shown for line in lines if line.startswith(SECONDS)}

    until(lambda: len(counted()) == 2 and min(counted()) > 0)  # both had work


def test_streams_stay_streams(client: httpx.Client) -> None:
    whole = client.post(CHAT, json=asks("What can you do?")).json()["choices"][0]["message"]["content"]
    with client.stream("POST", CHAT, json=asks("What can you do?", stream=True)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = list(answer.iter_raw())
    assert len(pieces) > 5  # not one lump at the end
    assert joined(chunks_of(b"".join(pieces).decode())) == whole


def test_clients_that_leave_end_their_work_on_their_replicas(client: httpx.Client) -> None:
    """Several at a time: Ray asks the replica with less to do for its figures, and both must have something to do."""
    body = asks("x", stream=True, max_tokens=1900, logit_bias=NEVER_ENDS)

    def figures(name: str) -> set[float]:
        shown = (client.get("/metrics").text.splitlines() for _ in range(8))
        return {float(line.split()[1]) for lines in shown for line in lines if line.startswith(name)}

    before = figures("mmswap_completion_tokens_total")
    with ExitStack() as stack:
        answers = [stack.enter_context(client.stream("POST", CHAT, json=body)) for _ in range(6)]
        lines = [answer.iter_lines() for answer in answers]  # an iterator that nobody holds closes its answer
        assert all(next(one) for one in lines)
        until(lambda: max(figures("mmswap_requests_running")) > 0)
    until(lambda: figures("mmswap_requests_running") == {0.0})
    assert max(figures("mmswap_completion_tokens_total")) < max(before) + 1000  # an answer to its end counts 1900


def test_what_is_refused_is_refused(client: httpx.Client) -> None:
    error_of(client.post(CHAT, json=asks("hi", n=0)), 400)
    error_of(client.get("/v1/models", headers={"authorization": "Bearer no"}), 401)
    error_of(client.get("/v1/models", headers={"origin": "https://evil.example"}), 403)


def test_captions_of_two_workers_are_those_of_one_process(cluster: None, tmp_path: Path) -> None:
    for colour in COLOURS:
        shape(colour).save(tmp_path / f"{colour}.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    files = sorted(path.name for path in tmp_path.iterdir())
    job = CaptionJob(tmp_path, "What colour is the shape?", config=HERE)
    found = {row["file"]: row for row in captions_by_ray(job, files, workers=2)}
    assert found == {row["file"]: row for row in captions_here(job, files)}
    assert found["red.png"]["caption"] == "red"
    assert "error" in found["bad.png"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": "0"}, "0 to 0 replicas"),
        ({"replicas": "3", "max_replicas": "2"}, "3 to 2 replicas"),
        ({"card": "cuda:1"}, "a card of its own"),
        ({"card": "cuda"}, "no card in this cluster"),
        ({"colour": "red"}, "no option 'colour'"),
        ({"context": "1"}, "--context"),
        ({"port": "99999"}, "--port"),
    ],
    ids=str,
)
def test_mistakes_are_sentences(cluster: None, given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        deploy.app({"card": "cpu", **given})


def test_replicas_grow_with_requests(cluster: None) -> None:
    made = deploy.app({"card": "cpu", "max_replicas": "3", "kv": "int8", "api_keys": "a,b", "name": "mine"})
    scale: Any = made._bound_deployment._deployment_config.autoscaling_config
    assert (scale.min_replicas, scale.max_replicas) == (1, 3)
    assert share_of_card("sim:1GiB") == {"num_cpus": 1}
    assert json.dumps(share_of_card("auto"))
