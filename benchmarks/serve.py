"""`mmswap serve` under load: requests a second, time to the first piece, gaps between pieces; with and without images.

    python benchmarks/serve.py [--model FOLDER] [--card auto] [--parallel 1,4] [--clients 1,4,16] [--requests 16]

Starts the server as a program on 127.0.0.1, one for each number of answers at a time, and asks them in turn, as clients
do that stream, each request with words (and a picture) of its own. Prints, and appends rows to benchmarks/serve.csv.
Clients and servers share the machine: rows of one run compare, figures of two machines do not.
"""

from __future__ import annotations

import argparse
import base64
import csv
import datetime
import http.client
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from mmswap import __version__
from mmswap.bench.machine import Machine
from mmswap.card import open_card

OUT = Path(__file__).with_suffix(".csv")
COLUMNS = (
    *("date", "device", "torch", "python", "mmswap", "model", "card", "parallel", "clients", "pictures", "requests"),
    *("requests_s", "tokens_s", "first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms", "encode_ms"),
    *("cpu_ms", "what"),
)
NUMBER = count()
ENDS: dict[str, int] = {}
CARRIED = {"0": -100, "2": -100}  # its end ids


@dataclass
class Heard:
    """One streamed answer: seconds to its first piece, when each piece came, what its picture took to encode."""

    first: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    encode_ms: float = 0.0

    @property
    def gaps(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.times, self.times[1:])]


@contextmanager
def serving(model: str | None, card: str, dtype: str, parallel: int) -> Iterator[tuple[int, int]]:
    """Port and process of a server that has loaded its model."""
    words = [sys.executable, "-m", "mmswap", "serve", "--port", "0", "--card", card, "--parallel", str(parallel)]
    words += ["--dtype", dtype, "--max-waiting", "64", *([model] if model else [])]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    try:
        assert process.stderr is not None
        while "Listening on" not in (line := process.stderr.readline()):
            if process.poll() is not None:
                raise SystemExit(f"the server did not start: {line}")
        port = int(line.split("127.0.0.1:")[1].split(",")[0])
        threading.Thread(target=process.stderr.read, daemon=True).start()
        while not _ready(port):
            time.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def picture(number: int, side: int = 448) -> str:
    """A data URI of a picture that no other number has."""
    image = Image.new("RGB", (side, side), (number * 37 % 256, number * 101 % 256, 255 - number % 200))
    ImageDraw.Draw(image).ellipse((side // 4, side // 4, side // 2 + number % (side // 4), side * 3 // 4), fill="red")
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def ask(port: int, tokens: int, pictured: bool) -> Heard:
    """One streamed answer of so many tokens, if the model does not end it before: the carried one is kept from that."""
    number = next(NUMBER)
    content: list[dict[str, Any]] = [{"type": "text", "text": f"Request {number}: what is to be seen, and why?"}]
    if pictured:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture(number)}})
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "stream": True, "max_tokens": tokens, "temperature": 1.5, "seed": number}
    body |= {"logit_bias": ENDS}
    body |= {"stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    heard, begun = Heard(), time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(answer.read().decode())
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if any(choice["delta"].get("content") for choice in event["choices"]):
            heard.times.append(time.perf_counter())
        if "mmswap" in event:
            heard.encode_ms = sum(image["encode_ms"] for image in event["mmswap"]["images"])
        if event.get("usage"):
            heard.tokens = event["usage"]["completion_tokens"]
    connection.close()
    heard.first = heard.times[0] - begun if heard.times else time.perf_counter() - begun
    return heard


def processor_seconds(pid: int) -> float | None:
    """Time of the processor that a process took so far, where the system tells it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def load(port: int, pid: int, clients: int, requests: int, tokens: int, pictured: bool) -> dict[str, Any]:
    """The figures of so many requests by so many clients, each of which asks again when it was answered."""
    begun, before = time.perf_counter(), processor_seconds(pid)
    with ThreadPoolExecutor(clients) as pool:
        heard = list(pool.map(lambda _: ask(port, tokens, pictured), range(requests)))
    spent = time.perf_counter() - begun
    after, total = processor_seconds(pid), sum(one.tokens for one in heard)
    cpu = {} if before is None or after is None else {"cpu_ms": f"{(after - before) / requests * 1e3:.0f}"}
    return cpu | {"requests_s": f"{requests / spent:.2f}", "tokens_s": f"{total / spent:.1f}", **figures(heard)}


def figures(heard: Sequence[Heard]) -> dict[str, Any]:
    gaps = [gap for one in heard for gap in one.gaps]
    encoded = [one.encode_ms for one in heard if one.encode_ms]
    return {
        **_quantiles("first", [one.first for one in heard]),
        **_quantiles("gap", gaps),
        "encode_ms": f"{statistics.median(encoded):.1f}" if encoded else "",
    }


def _quantiles(name: str, seconds: list[float]) -> dict[str, str]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {f"{name}_p50_ms": f"{statistics.median(ordered) * 1e3:.1f}", f"{name}_p99_ms": f"{p99 * 1e3:.1f}"}


def beside_pictures(port: int, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gaps of one long answer while nobody else is there, and while another's pictures are encoded and read."""
    quiet = ask(port, tokens, False)
    done = threading.Event()
    others: list[Heard] = []

    def show() -> None:
        while not done.is_set():
            others.append(ask(port, 1, True))

    thread = threading.Thread(target=show)
    thread.start()
    disturbed = ask(port, tokens, False)
    done.set()
    thread.join()
    encoded = {"encode_ms": f"{statistics.median(one.encode_ms for one in others):.1f}"}
    return figures([quiet]), figures([disturbed]) | encoded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="a checkpoint folder; the carried model without it")
    parser.add_argument("--card", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--parallel", default="1,4", help="answers at a time, a server for each")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--text-only", action="store_true", help="for a model without a vision tower")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    name = Path(options.model).name if options.model else "seer (carried)"
    ENDS.update({} if options.model else CARRIED)
    with ExitStack() as stack:
        ports = {
            parallel: stack.enter_context(serving(options.model, options.card, options.dtype, parallel))
            for parallel in map(int, options.parallel.split(","))
        }
        for port, _ in ports.values():
            ask(port, 4, not options.text_only)  # whatever is set up at a first request
        table = Table(options.out, name, options.card)
        for pictured in (False,) if options.text_only else (False, True):
            for clients in map(int, options.clients.split(",")):
                row = {"clients": clients, "pictures": int(pictured), "requests": options.requests, "what": "load"}
                for parallel, place in ports.items():  # in turn, so that all meet the same noise
                    table.add(
                        row | {"parallel": parallel}, load(*place, clients, options.requests, options.tokens, pictured)
                    )
        for parallel, (port, _) in ports.items():
            if parallel > 1 and not options.text_only:
                row = {"parallel": parallel, "pictures": 0, "requests": 1}
                quiet, disturbed = beside_pictures(port, 8 * options.tokens)
                table.add(row | {"clients": 1, "what": "one answer, nobody beside it"}, quiet)
                table.add(row | {"clients": 2, "what": "one answer beside another's pictures"}, disturbed)


class Table:
    """Prints rows, and appends them to a file."""

    def __init__(self, out: Path, model: str, card: str) -> None:
        self._out = out
        self._common = {
            "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
            "device": Machine.of(open_card(card).device).device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "mmswap": __version__,
            "model": model,
            "card": card,
        }

    def add(self, row: dict[str, Any], found: dict[str, Any]) -> None:
        whole = self._common | row | found
        new = not self._out.exists()
        with self._out.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
            if new:
                writer.writeheader()
            writer.writerow(whole)
        print(json.dumps(whole), flush=True)


if __name__ == "__main__":
    main()
