"""Image processors that transformers has for torchvision only, without torchvision: shapes on meta tensors.

`torchless_class("llama4", "Llama4ImageProcessor")` is the family's own class, loaded under a name of its own, in which
everything that would touch pixels answers with their shape. It cannot make a picture; `blank.shapes_of` runs it.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers.image_processing_backends import TorchvisionBackend

from mmswap.vision.resizing import resized

_LOCK = threading.Lock()
_STOOD_IN = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")


class InterpolationMode(Enum):
    """torchvision's, of which only the names are needed."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Functional(ModuleType):
    """The part of `torchvision.transforms.v2.functional` that image processors call, on shapes."""

    InterpolationMode = InterpolationMode

    @staticmethod
    def resize(image: Tensor, size: Any, *args: Any, **kwargs: Any) -> Tensor:
        return image.new_empty((*image.shape[:-2], *map(int, size)))

    @staticmethod
    def pad(image: Tensor, padding: Any, *args: Any, **kwargs: Any) -> Tensor:
        left, top, right, bottom = padding if len(padding) == 4 else (*padding, *padding)
        height, width = image.shape[-2:]
        return image.new_empty((*image.shape[:-2], height + top + bottom, width + left + right))

    @staticmethod
    def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
        return image.new_empty((*image.shape[:-2], height, width))

    @staticmethod
    def normalize(image: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return image

    @staticmethod
    def rgb_to_grayscale(image: Tensor, num_output_channels: int = 1) -> Tensor:
        return image.new_empty((*image.shape[:-3], num_output_channels, *image.shape[-2:]))


class TorchShapes(TorchvisionBackend):  # type: ignore[misc]
    """What `TorchvisionBackend` does to pixels, done to shapes. Stands right before it among a family's classes."""

    def process_image(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def convert_to_rgb(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        return _Functional.resize(image, resized(image, size))

    def rescale_and_normalize(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        return images

    def normalize(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def center_crop(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        return _Functional.crop(image, 0, 0, size.height, size.width)

    def pad(self, images: Any, pad_size: Any = None, *args: Any, return_mask: bool = False, **kwargs: Any) -> Any:
        sizes = [tuple(image.shape[-2:]) for image in images]
        most = (pad_size.height, pad_size.width) if pad_size else tuple(map(max, zip(*sizes)))
        padded = [_Functional.resize(image, most) for image in images]
        if not return_mask:
            return padded
        masks = [torch.zeros(most, dtype=torch.int64) for _ in sizes]
        for mask, (height, width) in zip(masks, sizes):
            mask[:height, :width] = 1
        return padded, masks


@cache
def torchless_class(module: str, name: str) -> Any:
    """The image processor class `name` of `transformers.models.<module>`, whose pixels are shapes.

    Returns: None if there is no such file or class.
    """
    try:
        home = importlib.util.find_spec(f"transformers.models.{module}.image_processing_{module}")
    except ModuleNotFoundError:
        return None
    if home is None or home.origin is None:
        return None
    spec = importlib.util.spec_from_file_location(f"transformers.models.{module}.shapes_of_{module}", home.origin)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    with _LOCK:
        before = {key: sys.modules.get(key) for key in _STOOD_IN}
        sys.modules[spec.name] = loaded
        sys.modules.update({key: _stand_in(key) for key in _STOOD_IN})
        try:
            spec.loader.exec_module(loaded)
        finally:
            for key, value in before.items():
                if value is None:
                    sys.modules.pop(key)
                else:
                    sys.modules[key] = value
    found = getattr(loaded, name, None)
    return None if found is None else type(name, (found, TorchShapes), {"__module__": spec.name})


def _stand_in(name: str) -> ModuleType:
    module = ModuleType(name, "Stands in for torchvision while one file is loaded.")
    module.functional = _Functional("functional")  # type: ignore[attr-defined]
    return module
