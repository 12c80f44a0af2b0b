"""A decoded PIL image of any mode to a plain upright RGB image. Knows no files and no limits.

Orientation by EXIF, alpha composited on white, 16 bits scaled instead of clipped, CMYK and palettes converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mmswap.errors import ImageError

_DEEP = ("I", "F")
_WHITE = (255, 255, 255, 255)


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """A new RGB image without metadata; the one given is not modified.

    Raises:
        ImageError: the colour mode cannot be converted.
    """
    turned = _turn(image)
    if turned.mode.startswith(_DEEP):
        turned = _to_8_bit(turned)
    try:
        rgb = _on_white(turned) if turned.has_transparency_data else turned.convert("RGB")
    except ValueError as error:
        raise ImageError(f"has the colour mode {turned.mode}, which cannot be converted to RGB.") from error
    if rgb is image:
        rgb = image.copy()
    rgb.info = {}  # no orientation, profile or transparency is left to be applied a second time
    return rgb


def _turn(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data raises anything from struct.error to SyntaxError: treat it as upright
        return image


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, _WHITE)
    return Image.alpha_composite(white, rgba).convert("RGB")


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Scale modes of 16 and 32 bits (`I;16*`, `I`, `F`) to `L`, or to `LA` where one value means transparent."""
    values: NDArray[Any] = np.asarray(image).astype(np.float32 if image.mode.startswith("I;16") else np.float64)
    bottom, top = _range_of(image.mode, values)
    grey = np.clip((values - bottom) * (255 / (top - bottom)), 0, 255).round().astype(np.uint8)
    clear: Any = image.info.get("transparency")
    if not isinstance(clear, int):
        return Image.fromarray(grey)
    alpha = np.where(values == clear, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(grey), Image.fromarray(alpha)))


def _range_of(mode: str, values: NDArray[Any]) -> tuple[float, float]:
    # 16 bits have a fixed range; for the others it is the smallest usual one that holds every value.
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    usual = (65535.0,) if mode.startswith("I;16") else (255.0, 65535.0) if mode == "I" else (1.0, 255.0, 65535.0)
    for top in usual:
        if low >= 0 and high <= top:
            return 0.0, top
    return low, max(high, low + 1)
