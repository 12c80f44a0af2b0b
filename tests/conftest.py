"""Shared by all tests: one thread is enough for tiny models, and nothing may ask a hub or remember another test."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where mmswap keeps profiles: a folder of this test's own, never the user's. It is made when it is used."""
    folder = tmp_path_factory.getbasetemp() / f"mmswap-cache-{next(_numbers)}"
    monkeypatch.setenv("MMSWAP_CACHE", str(folder))
    return folder
