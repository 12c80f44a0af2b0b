"""Machines to be examined that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_machine import Machine


@pytest.fixture
def windows(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path / "windows root", windows=True)
    machine.environ |= {"ProgramFiles": r"C:\Program Files", "ProgramFiles(x86)": r"C:\Program Files (x86)"}
    return machine


@pytest.fixture
def linux(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "linux root", windows=False)
