"""`--image-min-pixels` and `--image-max-pixels`, put into effect for each kind of image processor. Knows no tokenizer.

Where the processor has a setting that bounds its pixels or tiles, the setting is changed; otherwise the picture is
resized before it is processed, which saves tiles or patches wherever the family's own rules follow the picture's size.
`Limiter(image_processor, config)` applies them; `.explain()` says what they do here; `.fit(image)` resizes if needed;
`.within(limits)` is one for a picture that asks for limits of its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from PIL import Image

from mmswap.config import ImageConfig, PixelLimits
from mmswap.errors import OptionError
from mmswap.vision.blank import shapes_of

# Soft tokens that Gemma 4 was trained with (its image processor refuses any other number).
_SOFT_TOKENS = (70, 140, 280, 560, 1120)
_NO_LOW = ", plus an overview where there are several; --image-min-pixels changes nothing"
_RATIOS = ((1, 1), (3, 2), (2, 3))
_SMALL, _LARGE = 24, 1024  # what they are multiplied by for pictures that a processor is asked about


class Limiter:
    """Holds an image processor to the user's limits; changes the settings of the processor it is given.

    Args:
        defaults: what the family asks of its image processor at every call.

    Attributes:
        processor: the one that is held to them.
    """

    def __init__(self, image_processor: Any, config: ImageConfig, defaults: Mapping[str, Any] | None = None) -> None:
        self.processor = image_processor
        self._defaults = defaults or {}
        self._low, self._high = config.min_pixels, config.max_pixels
        self._bounded = False
        self._enlarges = True  # whether a lower limit changes anything
        self._most = self._high  # pixels of a picture, if anything says so
        self._explanation = self._apply(image_processor)

    def explain(self) -> str:
        """What the two limits do with this family, in one sentence."""
        return self._explanation

    def fit(self, image: Image.Image) -> Image.Image:
        """The picture within the limits, its ratio kept; the same object where nothing is to do."""
        if self._bounded:
            return image
        pixels = image.width * image.height
        if self._high is not None and pixels > self._high:
            return _resized(image, math.sqrt(self._high / pixels), math.floor)
        if self._low is not None and pixels < self._low:
            return _resized(image, math.sqrt(self._low / pixels), math.ceil)
        return image

    def within(self, limits: PixelLimits) -> Limiter:
        """A limiter, with a processor of its own, for what one picture asks for; never beyond this one's upper limit.

        Raises:
            OptionError: this family cannot be held to it.
        """
        high = min((most for most in (limits.max_pixels, self._most) if most is not None), default=None)
        low = limits.min_pixels
        if low is not None and high is not None and low > high:
            raise OptionError(f"min_pixels is {low}, and a picture may have {high} pixels at most here.")
        if low is None and self._low is not None:
            low = self._low if high is None else min(self._low, high)
        found = Limiter(copy.deepcopy(self.processor), ImageConfig(min_pixels=low, max_pixels=high), self._defaults)
        if self._one_size:
            raise OptionError(
                "This model looks at every picture in one size, so limits on pixels would change nothing."
            )
        if limits.min_pixels is not None and not found._enlarges:
            raise OptionError("This model never enlarges a picture, so min_pixels would change nothing.")
        return found

    @cached_property
    def _one_size(self) -> bool:
        """Whether no limit and no size of a picture makes a difference to what this processor makes of it."""
        if self._bounded:
            tight = Limiter(copy.deepcopy(self.processor), ImageConfig(max_pixels=1)).processor
            return all(self._made(side, self.processor) == self._made(side, tight) for side in (_SMALL, _LARGE))
        return bool(self._made(_SMALL, self.processor) == self._made(_LARGE, self.processor))

    def _made(self, side: int, processor: Any) -> Any:
        processor = copy.copy(processor)
        for name, value in self._defaults.items():
            setattr(processor, name, value)
        return _known([list(shapes_of(processor, side * w, side * h).values()) for w, h in _RATIOS])

    def _apply(self, processor: Any) -> str:
        size = dict(getattr(processor, "size", None) or {})
        if {"shortest_edge", "longest_edge"} <= _given(size) and getattr(processor, "merge_size", None):
            return self._bound_area(processor, size)
        if getattr(processor, "max_soft_tokens", None):
            return self._bound_soft_tokens(processor)
        if getattr(processor, "do_image_splitting", False) and getattr(processor, "max_image_size", None):
            return self._bound_longest_edge(processor, size)
        if getattr(processor, "max_patches", None) and hasattr(processor, "crop_to_patches"):
            return self._bound_tiles(processor, size)
        return "The picture is resized to the limits before the model's own preprocessing, whose rules then apply."

    def _bound_area(self, processor: Any, size: dict[str, Any]) -> str:
        # The names are those of transformers; for this kind they hold pixels of the whole picture, not edges.
        self._bounded = True
        frames = _frames_counted(processor)
        low, high = size["shortest_edge"] // frames, size["longest_edge"] // frames
        if self._high is not None:
            high = self._high
            low = min(low, high)
        if self._low is not None:
            low = self._low
            high = max(low, high)
        self._most = high
        if self._low is not None or self._high is not None:
            processor.size = _same_kind(processor.size, shortest_edge=low * frames, longest_edge=high * frames)
        return f"A picture is resized to between {low} and {high} pixels, in whole cells."

    def _bound_soft_tokens(self, processor: Any) -> str:
        self._bounded, self._enlarges = True, False
        cell = (_side(processor.patch_size) * processor.pooling_kernel_size) ** 2
        if self._high is not None:
            fitting = [count for count in _SOFT_TOKENS if count * cell <= self._high]
            processor.max_soft_tokens = min(max(fitting, default=_SOFT_TOKENS[0]), processor.max_soft_tokens)
        pixels = processor.max_soft_tokens * cell
        return f"Every picture is resized to about {pixels} pixels; --image-min-pixels changes nothing."

    def _bound_longest_edge(self, processor: Any, size: dict[str, Any]) -> str:
        self._bounded, self._enlarges = True, False
        tile = dict(processor.max_image_size)["longest_edge"]
        edge = size.get("longest_edge") or tile
        if self._high is not None:
            edge = min(edge, max(tile, math.isqrt(self._high) // tile * tile))
            processor.size = _same_kind(processor.size, longest_edge=edge)
        return f"A picture is scaled to a longest side of {edge} and cut into tiles of {tile}x{tile}{_NO_LOW}."

    def _bound_tiles(self, processor: Any, size: dict[str, Any]) -> str:
        self._bounded, self._enlarges = True, False
        tile = size.get("height", 1) * size.get("width", 1)
        if self._high is not None:
            processor.max_patches = min(processor.max_patches, max(1, self._high // tile))
            processor.min_patches = min(processor.min_patches, processor.max_patches)
        return f"A picture is cut into at most {processor.max_patches} tiles of {tile} pixels{_NO_LOW}."


def _known(value: Any) -> Any:
    """What is known of features without pixels: shapes of numbers with a point, the others as they are."""
    if isinstance(value, (list, tuple)):
        return [_known(part) for part in value]
    if isinstance(value, torch.Tensor):
        return tuple(value.shape) if value.is_floating_point() else value.tolist()
    return value


def _given(size: dict[str, Any]) -> set[str]:
    return {name for name, value in size.items() if value}


def _same_kind(old: Any, **values: int) -> Any:
    return values if isinstance(old, dict) else type(old)(**values)


def _frames_counted(processor: Any) -> int:
    """How often the processor counts each pixel of a picture: GLM's bounds hold both frames of a temporal patch."""
    cell = _side(processor.patch_size) * int(processor.merge_size)
    bound = (1000 * cell) ** 2
    asked = {"size": {"shortest_edge": 1, "longest_edge": bound}, "min_pixels": 1, "max_pixels": bound}
    try:
        patches = int(processor.get_number_of_image_patches(4000 * cell, 4000 * cell, asked))
    except Exception:  # a processor that cannot be asked counts as all others do
        return 1
    return max(1, round(bound / (patches * _side(processor.patch_size) ** 2)))


def _side(patch: Any) -> int:
    return int(patch) if isinstance(patch, int) else int(dict(patch)["height"])


def _resized(image: Image.Image, scale: float, rounding: Any) -> Image.Image:
    width, height = (max(1, rounding(side * scale)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)
