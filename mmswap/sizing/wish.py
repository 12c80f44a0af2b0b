"""What a person wants to run, checked at once. Knows no model and no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmswap.config import KV_KINDS, ImageConfig, SwapConfig
from mmswap.errors import OptionError
from mmswap.sizing.packing import FORMATS

MOST_IMAGES = 1000  # in one prompt; each takes a token at the least, and contexts end
_SIZE = re.compile(r"\s*(\d{1,9})\s*[xX×*]\s*(\d{1,9})\s*")


@dataclass(frozen=True, slots=True)
class Wish:
    """Pictures of one prompt, and how the model is to run.

    Attributes:
        width, height, images: of the pictures. context: tokens; None for the model's own, within reason.
        kv: one of `KV_KINDS`; None as the weights. quantize: `int4` or None. chunk: most tokens of a prefill step.
        margin: the share added to what the encoder needs.
    """

    width: int = 1344
    height: int = 1344
    images: int = 1
    context: int | None = None
    kv: str | None = None
    quantize: str | None = None
    chunk: int = 2048
    margin: float = SwapConfig().margin

    def __post_init__(self) -> None:
        size, most = f"{self.width}x{self.height}", ImageConfig().decode_limit
        _require(min(self.width, self.height) >= 1, f"--image {size}: a picture has at least one pixel each way.")
        _require(self.width * self.height <= most, f"--image {size} is above the {most} pixels that are decoded.")
        _require(1 <= self.images <= MOST_IMAGES, f"--images must be 1 to {MOST_IMAGES}.")
        _require(self.context is None or self.context >= 16, "--context must be 16 tokens or more.")
        _require(self.kv is None or self.kv in KV_KINDS, f"--kv {self.kv} is not known: use {', '.join(KV_KINDS)}.")
        known = self.quantize is None or self.quantize in FORMATS
        _require(known, f"--quantize {self.quantize} is not known: use {', '.join(FORMATS)}.")
        _require(self.chunk >= 16, "--prefill-chunk must be 16 tokens or more.")


def picture_size(text: str) -> tuple[int, int]:
    """`'1344x1008'` as (width, height).

    Raises:
        OptionError: it is no size; the sentence says how to write one.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise OptionError(f"--image {text} is not a size: write width and height in pixels, for example 1344x1008.")
    return int(match[1]), int(match[2])


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise OptionError(sentence)
