"""Shared by the tests of the accelerator's code."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake
