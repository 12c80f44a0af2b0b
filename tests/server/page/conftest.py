"""Chromium before a server that really listens, on a card that is too small for the carried model's encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from browser import Browser, missing
from paging import Open
from serving import listening

import mmswap
from mmswap.runtime import Runtime
from mmswap.server import ServerConfig, create_app


@pytest.fixture(scope="session")
def small() -> Runtime:
    """A card on which a picture needs a window."""
    return mmswap.load(card="sim:11MiB")


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    with Browser.start(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser) -> Iterator[Browser]:
    """The browser as a desktop has it; the test must not leave complaints in its console."""
    chromium.look()
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []


@pytest.fixture
def opened(page: Browser) -> Iterator[Open]:
    """Lets a server with a runtime listen, and opens its page."""
    with ExitStack() as stack:

        def open_page(runtime: Any, **config: Any) -> Any:
            runtime.forget()
            app = create_app(ServerConfig(name="seer", **config), lambda progress: runtime)
            port = stack.enter_context(listening(app))
            page.open(f"http://127.0.0.1:{port}/")
            return app.state.engine

        yield open_page
        page.open("about:blank")
