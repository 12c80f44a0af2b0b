"""Folders of the working tree as packages, for a Windows Python in which mmswap is not installed.

add_houses()      # `mmswap.hip_ext` can be imported, and what lies beside the tests of hip_ext
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import mmswap

ROOT = Path(__file__).parents[2]


def add_houses() -> None:
    """Does nothing where the package is installed."""
    sys.path.insert(0, str(ROOT / "tests" / "hip_ext"))
    if find_spec("mmswap.hip_ext") is None:
        mmswap.__path__.append(str(ROOT))
