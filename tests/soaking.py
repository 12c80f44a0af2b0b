"""A soak: many requests with random faults at a server of its own process. `scripts/soak-server` runs it long.

    with Server(card="sim:12MiB") as server: report = soak(server, requests=2000, clients=6, seed=1)
    assert report.good, report

Every right request's answer is compared with the one that the same request got alone, before anything went wrong.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import random
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image
from serving import CHAT, asks, picture, shape, text

COLOURS = ("red", "blue", "green", "yellow")
KINDS = ("ellipse", "rectangle")
SIZES = ((112, 112), (160, 120), (400, 300))
QUESTION = "What colour is the shape?"
MIB = 1 << 20


def fingerprint(model: Any) -> str:
    """Of every weight, every byte."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def serve_until_told(card: str, parallel: int) -> None:
    """The process of `Server`: says its port, serves until its standard input ends, says what became of the weights."""
    from serving import listening

    import mmswap
    from mmswap.server import ServerConfig, create_app

    runtime = mmswap.load(card=card)
    before = fingerprint(runtime.model)
    app = create_app(ServerConfig(name="seer", parallel=parallel, max_waiting=16), lambda progress: runtime)
    with listening(app) as port:
        app.state.engine.loaded.wait()
        print(json.dumps({"port": port, "fingerprint": before}), flush=True)
        sys.stdin.read()
        idle = not app.state.engine.running and not len(app.state.engine.waiting)
    print(json.dumps({"fingerprint": fingerprint(runtime.model), "idle": idle}), flush=True)


class Server:
    """The server's process. After the block: `weights_kept`, `idle`."""

    def __init__(self, card: str, parallel: int = 4) -> None:
        words = f"import soaking; soaking.serve_until_told({card!r}, {parallel})"
        here = str(Path(__file__).parent)
        start = f"import sys; sys.path.insert(0, {here!r}); {words}"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: Any = subprocess.Popen([sys.executable, "-P", "-c", start], **pipes)  # type: ignore[call-overload]
        said = json.loads(self._process.stdout.readline())
        self.port, self._before = said["port"], said["fingerprint"]
        self.weights_kept = self.idle = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: Any) -> None:
        out, _ = self._process.communicate("", timeout=120)
        told = json.loads(out.splitlines()[-1])
        self.weights_kept, self.idle = told["fingerprint"] == self._before, told["idle"]

    def memory(self) -> int:
        """Bytes that are the process's own, swapped out ones too; 0 where nobody says."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "VmSwap"))}
        return sum(sizes.values()) * 1024

    def post(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def figures(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


@dataclass
class Report:
    """What a soak found. `wrong`: what should not have been. `memory`: of the server, at every twentieth of the way."""

    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def growth(self) -> int:
        """Bytes from the second quarter to the last one, by their middles: pictures under way come and go."""
        quarter = max(1, len(self.memory) // 4)
        return int(median(self.memory[-quarter:]) - median(self.memory[quarter : 2 * quarter] or self.memory))


def soak(
    server: Server, *, requests: int, clients: int, seed: int, kinds: int = 24, say: Callable[[str], None] = str
) -> Report:
    """Send that many requests about that many pictures, several clients at once; see the module."""
    report, numbers, lock, begun = Report(), count(), threading.Lock(), time.monotonic()
    shown = [(colour, kind, size) for size in SIZES for kind in KINDS for colour in COLOURS]
    shown = random.Random(seed).sample(shown, kinds)
    right = {one: _answer(server.post(_body(_question(*one)))[1]) for one in shown}

    def client(number: int) -> None:
        while (at := next(numbers)) < requests:
            pick = random.Random(seed * 1_000_003 + at)
            kind = pick.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()])[0]
            one = pick.choice(shown)
            try:
                wrong = FAULTS[kind][1](server, pick, one, right[one], report)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            with lock:
                report.requests[kind] += 1
                report.wrong += [f"{at} {kind} {one}: {wrong}"] if wrong else []
                if at % max(1, requests // 20) == 0:
                    report.memory.append(server.memory())
                if at and at % 200 == 0:
                    say(f"{at} requests, {server.memory() / MIB:.0f} MiB, {len(report.wrong)} wrong")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = {one: _answer(server.post(_body(_question(*one)))[1]) for one in shown}
    report.wrong += [f"afterwards {one}: {again[one]!r}" for one in shown if again[one] != right[one]]
    report.figures, report.seconds = server.figures(), time.monotonic() - begun
    return report


def _question(colour: str, kind: str, size: tuple[int, int], **more: Any) -> dict[str, Any]:
    return asks([picture(shape(colour, kind, size)), text(QUESTION)], max_tokens=6, **more)


def _body(body: Any) -> bytes:
    return json.dumps(body).encode()


def _answer(raw: bytes) -> str:
    return str(json.loads(raw)["choices"][0]["message"]["content"])


def _asked(server: Server, body: dict[str, Any], report: Report) -> bytes:
    """The body of an answer; who is told to come again comes again."""
    for _ in range(200):
        status, raw = server.post(_body(body))
        report.statuses[status] += 1
        if status != 429:
            assert status == 200, (status, raw[:200])
            return raw
        time.sleep(0.05)
    raise AssertionError("it is never its turn")


def _plain(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    found = _answer(_asked(server, _question(*one), report))
    return "" if found == right else repr(found)


def _streamed(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    raw = _asked(server, _question(*one, stream=True), report).decode()
    assert raw.count("data: [DONE]") == 1
    chunks = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
    found = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return "" if found == right else repr(found)


def _two_pictures_of_one_chat(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    """A second question about the same picture, and then another picture in the same words."""
    body = _question(*one)
    messages = [*body["messages"], {"role": "assistant", "content": right}, {"role": "user", "content": QUESTION}]
    _asked(server, {**body, "messages": messages}, report)
    return _plain(server, pick, one, right, report)


def _several_answers(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    raw = _asked(server, _question(*one, n=2, logprobs=True, top_logprobs=2), report)
    found = [choice["message"]["content"] for choice in json.loads(raw)["choices"]]
    return "" if found == [right] * 2 else repr(found)


def _vanishes(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    """The connection is cut while the request is sent, waits, is read, or is answered."""
    body = _body(
        {**_question(*one, stream=pick.random() < 0.7), "max_tokens": 60, "logit_bias": {"2": -100, "0": -100}}
    )
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    sent = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(sent[: pick.choice((len(sent), len(sent), len(sent) // 2))])
        if pick.random() < 0.5:
            connection.settimeout(pick.random())
            connection.recv(pick.choice((1, 100, 4000)))
        else:
            time.sleep(pick.random() * 0.2)
    return ""


def _bad(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    good = _question(*one)
    url = good["messages"][0]["content"][0]["image_url"]["url"]
    bodies = (
        b"{", b"[]", b"", b'{"messages": []}', b"\xff\xfe", _body({**good, "n": 0}),
        _body({**good, "temperature": "hot"}), _body({**good, "max_pixels": 5}), _body({**good, "tools": [1]}),
        _body(asks([{"type": "image_url", "image_url": {"url": url[: len(url) // 2]}}, text("?")])),
        _body(asks([{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}])),
        _body(asks([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + _BOMB}}])),
        _body(asks("word " * 4000)),
    )  # fmt: skip
    status, raw = server.post(pick.choice(bodies))
    report.statuses[status] += 1
    return "" if status == 400 and "error" in json.loads(raw) else f"{status} {raw[:200]!r}"


def _large(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    noise = Image.frombytes("RGB", (16, 16), bytes(pick.randrange(256) for _ in range(768)))
    image = noise.resize((pick.randrange(1200, 2400), pick.randrange(900, 1800)))
    _asked(server, asks([picture(image), text("Describe the picture.")], max_tokens=4), report)
    return ""


def _looks(server: Server, pick: random.Random, one: Any, right: str, report: Report) -> str:
    path = pick.choice(("/health", "/metrics", "/v1/models", "/", "/events"))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read(200)
    report.statuses[answer.status] += 1
    connection.close()
    return "" if answer.status == 200 else str(answer.status)


def _bomb() -> str:
    """A picture that says it has 3.6 billion pixels."""
    data = io.BytesIO()
    Image.new("1", (8, 8)).save(data, "PNG")
    raw = bytearray(data.getvalue())
    raw[16:24] = (60_000).to_bytes(4, "big") * 2
    raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4, "big")
    return base64.b64encode(raw).decode()


_BOMB = _bomb()
FAULTS: dict[str, tuple[int, Callable[..., str]]] = {
    "plain": (22, _plain),
    "streamed": (18, _streamed),
    "turns": (8, _two_pictures_of_one_chat),
    "several": (6, _several_answers),
    "vanishes": (22, _vanishes),
    "bad": (14, _bad),
    "large": (4, _large),
    "looks": (6, _looks),
}


def lines_of(report: Report, server: Server) -> Iterator[str]:
    """What a person wants to know of a soak."""
    yield f"{sum(report.requests.values())} requests in {report.seconds:.0f} s: {dict(report.requests)}"
    yield f"statuses {dict(report.statuses)}, {len(report.wrong)} wrong, weights kept: {server.weights_kept}"
    memory = " ".join(f"{nbytes / MIB:.0f}" for nbytes in report.memory)
    yield f"memory {memory} MiB, grown by {report.growth / MIB:.0f} MiB; idle at the end: {server.idle}"
    names = ("windows_total", "evicted_bytes_total", "restored_bytes_total", "spills_total")
    yield ", ".join(f"{name} {report.figures[f'mmswap_{name}']:.0f}" for name in names)
    yield from report.wrong[:10]
