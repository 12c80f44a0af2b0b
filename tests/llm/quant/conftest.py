"""Tests of quantised weights share `stored_layers.py`, which lies beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
