"""`windows`: every test that asks for it runs against ctypes callbacks and against the compiled fake."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from windows.compiled import Compiled, build, why_not
from windows.vtables import Vtables
from windows.world import World


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := why_not():
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("fakes"))


@pytest.fixture(params=["callbacks", "compiled"])
def windows(request: pytest.FixtureRequest) -> Iterator[World]:
    """Nothing may be held when the test is over: a reference, an event, a query or a handle that leaks fails it."""
    world = Vtables() if request.param == "callbacks" else Compiled(request.getfixturevalue("fakes"))
    yield world
    if any(world.held().values()):
        gc.collect()  # slow in a process full of torch, and needed only by what was not closed
    assert {name: count for name, count in world.held().items() if count} == {}
