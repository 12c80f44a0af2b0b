"""What `import mmswap` promises: these names, each importable, and nothing heavy until it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mmswap

HERE = Path(__file__).parent  # not the root: `-c` would put ./mmswap before the installed package


def test_every_public_name_is_there() -> None:
    assert [name for name in mmswap.__all__ if getattr(mmswap, name, None) is None] == []
    assert sorted(mmswap.__all__) == mmswap.__all__


def test_import_is_light() -> None:
    code = "import sys, mmswap; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0
