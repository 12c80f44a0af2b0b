"""Shared by all tests: one thread is enough for tiny models, and nothing may ask a hub or remember another test."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def no_users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A runtime that is shared by tests is made before the first of them has a cache: it knew what the user's runs had
    taught."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMSWAP_CACHE", str(tmp_path_factory.getbasetemp() / f"mmswap-cache-{next(_numbers)}"))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where mmswap keeps profiles: a folder of this test's own, never the user's. It is made when it is used."""
    folder = tmp_path_factory.getbasetemp() / f"mmswap-cache-{next(_numbers)}"
    monkeypatch.setenv("MMSWAP_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def own_modes() -> Iterator[None]:
    """No test leaves a dispatch mode behind: it would see, and count, every op of the tests after it."""
    yield
    modes = getattr(sys.modules.get("torch.utils._python_dispatch"), "_get_current_dispatch_mode_stack", list)()
    for mode in reversed(modes):
        mode.__exit__(None, None, None)
    assert not modes, f"{[type(mode).__name__ for mode in modes]} was entered and never left"
