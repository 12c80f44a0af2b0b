"""One loaded model for all tests of the server, on a card that is too small for a large picture beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import mmswap
from mmswap.runtime import Runtime
from mmswap.server import ServerConfig, create_app

HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return mmswap.load(card="sim:64MiB")


@pytest.fixture(scope="module")
def client(runtime: Runtime) -> Iterator[TestClient]:
    app = create_app(ServerConfig(name="seer"), lambda progress: runtime)
    with TestClient(app, base_url=HERE) as client:
        app.state.engine.loaded.wait()
        yield client
