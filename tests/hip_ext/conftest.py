"""Machines to be examined that are not there; the modules beside the tests are importable by their own names."""

import sys
from pathlib import Path

from fake_machine import linux, windows

sys.path.insert(0, str(Path(__file__).parent))

__all__ = ["linux", "windows"]
