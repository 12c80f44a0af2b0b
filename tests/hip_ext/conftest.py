"""Machines to be examined that are not there; the modules beside the tests are importable by their own names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_machine import linux, windows

if TYPE_CHECKING:
    from stand_in import Both

sys.path.insert(0, str(Path(__file__).parent))

__all__ = ["linux", "windows"]


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The kernels for this processor, by launchers and by kernels alone; compiled once."""
    from stand_in import Both, stand_in

    return Both(stand_in(tmp_path_factory.mktemp("stand in")))
