"""mmswap: vision-language models on one card, where an image never makes the process spill. See ARCHITECTURE.md.

runtime = mmswap.load("checkpoint", card="auto");  runtime.chat("What is this?", images=["photo.jpg"]).text
with mmswap.SwapPool(layers, card="cuda").window(need=nbytes): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.config import ImageConfig, RunConfig, SamplingConfig, SwapConfig
from mmswap.errors import (
    ContextOverflow,
    DoesNotFit,
    ImageError,
    MmswapError,
    ModelError,
    NonFiniteLogits,
    OptionError,
    PartsNotFound,
    UserError,
    WindowMisuse,
)
from mmswap.late import late

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.card import Card, open_card
    from mmswap.runtime import Runtime, load
    from mmswap.stream import Stream
    from mmswap.swap import SwapPool

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Card",
    "ContextOverflow",
    "DoesNotFit",
    "ImageConfig",
    "ImageError",
    "MmswapError",
    "ModelError",
    "NonFiniteLogits",
    "OptionError",
    "PartsNotFound",
    "RunConfig",
    "Runtime",
    "SamplingConfig",
    "Stream",
    "SwapConfig",
    "SwapPool",
    "UserError",
    "WindowMisuse",
    "load",
    "open_card",
]

# what needs torch is imported when it is asked for, so that `mmswap --help` is quick
__getattr__ = late(
    __name__,
    {
        "Answer": "answer",
        "Card": "card",
        "Runtime": "runtime",
        "Stream": "stream",
        "SwapPool": "swap",
        "load": "runtime",
        "open_card": "card",
    },
)
