"""The server as a program: ports, signals, what is said; and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from serving import CHAT, NEVER_ENDS, asks, error_of, until

from mmswap.errors import OptionError
from mmswap.server.listening import address, bind

HERE = Path(__file__).parent  # not the root: `-m` would put ./mmswap before the installed package


class Program:
    """`mmswap serve` in a process of its own."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "mmswap", "serve", "--port", "0", *words]
        flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if os.name == "nt" else {}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=HERE, **flags)  # type: ignore[call-overload]
        said = self.line()
        self.port = int(said.split("127.0.0.1:")[1].split(",")[0])

    def line(self) -> str:
        return str(self.process.stderr.readline())  # type: ignore[union-attr]

    def health(self) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def signal(self, number: int) -> tuple[int, str]:
        """The exit code within five seconds, and what was said on the way."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=5)
        return self.process.returncode, said


@pytest.fixture
def program() -> Iterator[Program]:
    started = Program("--card", "sim:64MiB")
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no SIGTERM that can be handled")
def test_a_signal_while_it_loads(program: Program) -> None:
    assert program.health()["status"] == "loading"
    code, said = program.signal(signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in said
    bind("127.0.0.1", program.port).close()


def test_ctrl_c_while_an_answer_streams(program: Program) -> None:
    assert "loaded" in program.line()
    assert program.health()["status"] == "ok"
    body = json.dumps(asks("hi", stream=True, logit_bias=NEVER_ENDS)).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{program.port}{CHAT}", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as stream:
        stream.readline()
        code, said = program.signal(signal.SIGINT if os.name != "nt" else signal.CTRL_BREAK_EVENT)
        rest = stream.read().decode()
    assert code in (0, 130)
    assert "Traceback" not in said
    assert "The server is stopping." in rest
    assert rest.rstrip().endswith("data: [DONE]")


def test_a_port_that_is_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run(monkeypatch, capsys, "serve", "--port", port)
    assert (code, out) == (2, "")
    sentence = "is in use: give another one with --port, or --port 0 for any that is free."
    assert err == f"mmswap: Port {port} of 127.0.0.1 {sentence}\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--port", "99999"], "65535"),
        (["--max-body", "many"], "not a size"),
        (["--host", "no such host"], "does not know that name"),
        (["/no/such/folder"], "no folder"),
        (["--cors-origin", "*"], "scheme, host and port"),
        (["--idle-unload", "0"], "above 0"),
        (["--parallel", "0"], "from 1 to 64 answers"),
        (["--kv", "fp5"], "not known"),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: Any, words: list[str], part: str) -> None:
    code, _, err = run(monkeypatch, capsys, "serve", *words)
    assert code == 2
    assert part in err
    assert err.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_program(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    code, _, err = run(monkeypatch, capsys, "serve", "--port", "0", "--card", "sim:2MiB")
    assert code == 1
    assert "Traceback" not in err
    assert "can be had" in err.splitlines()[-1]
    assert signal.getsignal(signal.SIGINT) is before


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = sys.modules["mmswap.cli.serve"]  # the name is the function's, too
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "fastapi" else name)
    code, _, err = run(monkeypatch, capsys, "serve")
    assert code == 2
    assert err == 'mmswap: The server needs packages that are not installed (fastapi): pip install "mmswap[server]".\n'


def test_where_it_listens() -> None:
    listener = bind("localhost", 0)
    assert address(listener).startswith(("http://127.0.0.1:", "http://[::1]:"))
    listener.close()
    with pytest.raises(OptionError, match="cannot listen"):
        bind("203.0.113.7", 0)


def test_the_page_is_served_as_files(client: Any) -> None:
    for path in ("/__init__.py", "/../app.py", "/%2e%2e/app.py", "/page/__init__.py"):
        assert client.get(path).status_code == 404
    page = client.get("/")
    if page.status_code == 200:
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"


def test_the_document_describes_both_bodies(client: Any) -> None:
    found = client.get("/openapi.json").json()
    body = found["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    assert "messages" in found["components"]["schemas"][name]["properties"]
    text = json.dumps(found)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in found["components"]["schemas"]


WAYS = [
    (CHAT, "POST"), ("/v1/completions", "POST"), ("/v1/models", "GET, HEAD"), ("/health", "GET, HEAD"),
    ("/events", "GET"), ("/", "GET, HEAD"), ("/chat.js", "GET, HEAD"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "allowed"), WAYS)
def test_what_may_be_done_at_an_address_is_said(client: Any, path: str, allowed: str) -> None:
    answer = client.request("DELETE", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert client.request("GET" if allowed == "POST" else "POST", path).headers["allow"] == allowed
    if "HEAD" in allowed:
        assert client.head(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/nothing", "/chat.py", "/v1"])
def test_an_address_with_nothing_says_so_however_it_is_asked(client: Any, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = client.request(method, path, json={} if method == "POST" else None)
        assert "There is nothing at" in error_of(answer, 404)["message"]
        assert "allow" not in answer.headers


def test_metrics_say_what_happened(client: Any) -> None:
    client.post(CHAT, json=asks("hi", max_tokens=1))
    client.post(CHAT, json=asks("hi", n=0))
    client.get("/secret/place")
    lines = client.get("/metrics").text.splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures['mmswap_requests_total{path="/v1/chat/completions",status="200"}']) == 1
    assert float(figures['mmswap_requests_total{path="/v1/chat/completions",status="400"}']) == 1
    assert float(figures['mmswap_requests_total{path="other",status="404"}']) >= 1
    assert float(figures["mmswap_completion_tokens_total"]) >= 1
    assert float(figures['mmswap_free_bytes{source="decided"}']) > 0
    assert float(figures['mmswap_weights_bytes{kind="predicted"}']) > 0
    for name in ("windows_total", "evicted_bytes_total", "spills_total", "spilled_bytes", "requests_waiting"):
        assert f"mmswap_{name}" in figures
    assert "secret" not in client.get("/metrics").text
    until(lambda: "mmswap_requests_running 0.0" in client.get("/metrics").text)
