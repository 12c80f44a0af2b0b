"""mmswap: vision-language models on one card, where an image never makes the process spill. See ARCHITECTURE.md."""

from __future__ import annotations

__version__ = "0.1.0"
