"""The demo model's scripts import each other as neighbours; so do their tests."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples" / "demo_model"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))
