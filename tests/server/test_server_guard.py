"""Who may use the server: names, origins, keys, kinds and sizes of bodies, before anything is done for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from serving import CHAT, asks, error_of, picture, shape
from starlette.testclient import TestClient

from mmswap.errors import OptionError
from mmswap.server import ServerConfig, create_app

EVIL = "https://evil.example"


@contextmanager
def served(runtime: Any, base: str = "http://127.0.0.1:8000", **options: Any) -> Iterator[TestClient]:
    app = create_app(ServerConfig(**options), lambda progress: runtime)
    with TestClient(app, base_url=base) as client:
        app.state.engine.loaded.wait()
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"host": "evil.example:8000"},
        {"host": "evil.example:8000", "origin": "http://evil.example:8000"},
        {"host": "localhost.evil.example"},
        {"host": "192.168.1.5:8000"},
        {"host": ""},
        {"origin": "http://127.0.0.1:9999"},
    ],
    ids=str,
)
def test_pages_from_elsewhere_cannot_drive_it(client: TestClient, headers: dict[str, str]) -> None:
    for response in (
        client.post(CHAT, json=asks("hi"), headers=headers),
        client.get("/v1/models", headers=headers),
        client.get("/health", headers=headers),
        client.options(CHAT, headers={**headers, "access-control-request-method": "POST"}),
    ):
        error_of(response, 403)
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "app.localhost:1"])
def test_this_machine_by_its_names(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200
    own = {"host": host, "origin": f"http://{host.lower()}"}
    assert client.post(CHAT, json=asks("hi", max_tokens=1), headers=own).status_code == 200


def test_a_body_must_be_called_json(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        error_of(client.post(CHAT, content=b"{}", headers={"content-type": kind}), 415)
    error_of(client.post(CHAT, content=b"{}"), 415)
    error_of(client.post(CHAT, content=b"{}", headers={"content-type": "application/json; charset=utf-8"}), 400)


def test_keys(runtime: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with served(runtime, api_keys=("first-key", "second-key")) as client:
        for given in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "first-key"},
            {"authorization": "Basic x"},
        ):
            for response in (
                client.post(CHAT, json=asks("hi"), headers=given),
                client.get("/metrics", headers=given),
                client.get("/events", headers=given),
                client.get("/v1/models", headers=given),
            ):
                assert error_of(response, 401)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        for key in ("first-key", "second-key"):
            mine = {"authorization": f"Bearer {key}"}
            assert client.post(CHAT, json=asks("hi", max_tokens=1), headers=mine).status_code == 200
            assert client.get("/metrics", headers={**mine, "host": "my.server.example"}).status_code == 200
        assert client.get("/health").status_code == 200
    assert "first-key" not in caplog.text


def test_pages_that_are_let_in(runtime: Any) -> None:
    friend = "https://friend.example"
    with served(runtime, cors_origins=(friend,), api_keys=("k",)) as client:
        asked = {"origin": friend, "access-control-request-method": "POST"}
        answer = client.options(CHAT, headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == friend
        error_of(client.options(CHAT, headers={**asked, "origin": EVIL}), 403)
        mine = {"origin": friend, "authorization": "Bearer k"}
        answer = client.get("/v1/models", headers=mine)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, friend)
        error_of(client.get("/v1/models", headers={"origin": friend}), 401)


def test_other_names_and_addresses(runtime: Any) -> None:
    with served(runtime, allow_hosts=("box.lan",)) as client:
        assert client.get("/health", headers={"host": "BOX.lan:8000"}).status_code == 200
    with served(runtime, host="0.0.0.0") as client:  # an address cannot be a name of somebody else's
        assert client.get("/health", headers={"host": "192.168.1.5:8000"}).status_code == 200
        error_of(client.get("/health", headers={"host": "evil.example"}), 403)


def test_bodies_and_pictures_have_limits(runtime: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    many = asks([picture(shape(size=(8, 8)))] * 3)
    with served(runtime, max_body=4096, max_images=2) as client:
        assert error_of(client.post(CHAT, json=many), 400)["code"] == "too_many_images"
        large = asks("x" * 5000)
        assert "4.0 KiB" in error_of(client.post(CHAT, json=large), 413)["message"]
        pieces = iter([b'{"messages": "', b"x" * 5000, b'"}'])  # no Content-Length
        answer = client.post(CHAT, content=pieces, headers={"content-type": "application/json"})
        assert error_of(answer, 413)["code"] == "request_too_large"
        assert client.post(CHAT, json=asks("hi", max_tokens=1)).status_code == 200
    assert "xxxx" not in caplog.text
    assert "base64" not in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"port": 70000},
        {"api_keys": ("",)},
        {"api_keys": ("schlüssel",)},
        {"cors_origins": ("*",)},
        {"cors_origins": ("https://a.example/path",)},
        {"max_body": 3},
        {"idle_unload": 0.0},
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"\.$"):
        ServerConfig(**options)
