"""Pictures from the web: only where that is allowed, only from public addresses, at every hop."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from serving import CHAT, asks, error_of, shape, text
from starlette.testclient import TestClient

from mmswap.server import ServerConfig, create_app
from mmswap.server.fetch import Fetcher, is_public
from mmswap.server.refusal import Refusal

PRIVATE = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1",
    "2001:0:7f00:1::", "not an address", "",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.fixture(scope="module")
def web() -> Iterator[int]:
    data = io.BytesIO()
    shape("red").save(data, "PNG")

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.seen.append(self.path)  # type: ignore[attr-defined]
            if self.path.startswith("/to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to/"))
                self.end_headers()
                return
            self.send_response(404 if self.path == "/missing.png" else 200)
            self.send_header("Content-Type", "text/html" if self.path == "/page" else "image/png")
            self.end_headers()
            body = data.getvalue() if self.path != "/large.png" else bytes(2_000_000)
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.seen = []  # type: ignore[attr-defined]
    Pages.daemon_threads = True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def names(host: str, port: int) -> list[str]:
    """A resolver in which every name is this machine, and some are two machines."""
    return {"two.example": ["8.8.8.8", "10.0.0.1"], "none.example": []}.get(host, ["127.0.0.1"])


def lenient(**more: Any) -> Fetcher:
    """This machine counts as public here, 10.0.0.1 does not."""
    return Fetcher(public=lambda address: address in ("127.0.0.1", "8.8.8.8"), lookup=names, **more)


def test_a_picture_is_fetched(web: int) -> None:
    assert lenient()(f"http://cats.example:{web}/cat.png").startswith(b"\x89PNG")
    assert lenient()(f"http://cats.example:{web}/to//cat.png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://two.example:{port}/cat.png", "not on the public internet"),
        ("http://none.example:{port}/cat.png", "not on the public internet"),
        ("http://cats.example:{port}/to/http://two.example:{port}/cat.png", "not on the public internet"),
        ("http://cats.example:{port}/to/ftp://cats.example/cat.png", "http: and https:"),
        ("http://cats.example:{port}/to//to//to//to//cat.png", "more than 3 times"),
        ("http://cats.example:{port}/missing.png", "status 404"),
        ("http://cats.example:{port}/page", "not call itself a picture"),
        ("http://cats.example:{port}/large.png", "larger than 976.6 KiB"),
        ("http://ann:pw@cats.example:{port}/cat.png", "user name"),
        ("http://cats.example:99999/cat.png", "not well formed"),
        ("http:///cat.png", "http: and https:"),
        ("http://cats.example:1/cat.png", "cannot be read"),
    ],
)
def test_what_is_not_fetched(web: int, address: str, why: str) -> None:
    with pytest.raises(Refusal, match=why) as refused:
        lenient(limit=1_000_000)(address.replace("{port}", str(web)))
    assert refused.value.status == 400


def test_a_picture_must_come_in_time(web: int) -> None:
    with pytest.raises(Refusal, match="too long"):
        lenient(seconds=0.0)(f"http://cats.example:{web}/cat.png")


def test_this_machine_is_never_asked(web: int, runtime: Any) -> None:
    app = create_app(ServerConfig(allow_image_urls=True), lambda progress: runtime)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.engine.loaded.wait()
        for host in (
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "2130706433",
            "0x7f.1",
            "127.1",
            "0.0.0.0",
        ):
            url = {"type": "image_url", "image_url": {"url": f"http://{host}:{web}/secret.png"}}
            error = error_of(client.post(CHAT, json=asks([url])), 400)
            assert error["code"] == "image_url_refused"
        for path in ("/etc/passwd", "file:///etc/passwd"):
            url = {"type": "image_url", "image_url": {"url": path}}
            assert error_of(client.post(CHAT, json=asks([url])), 400)["code"] == "invalid_image_url"


def test_an_allowed_address_is_a_picture_like_any_other(web: int, runtime: Any) -> None:
    app = create_app(ServerConfig(allow_image_urls=True), lambda progress: runtime, fetch=lenient())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        app.state.engine.loaded.wait()
        question = "What colour is the shape?"
        url = {"type": "image_url", "image_url": {"url": f"http://cats.example:{web}/cat.png"}}
        answer = client.post(CHAT, json=asks([url, text(question)])).json()
        assert answer["choices"][0]["message"]["content"] == runtime.chat(question, images=[shape("red")]).text
