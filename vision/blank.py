"""A picture of which only the size is known, and transformers' image processors run on it: shapes without pixels.

`shapes_of(image_processor, 1344, 1008)` gives what the processor makes of such a picture: grids, sizes and masks for
real, pixels as meta tensors. The family's own code runs; only its arithmetic on pixels is left out, so that a picture
of 48 megapixels costs no more than a small one. Knows no model.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import image_transforms
from transformers.image_processing_backends import PilBackend
from transformers.image_utils import ChannelDimension

from mmswap.swap.tracker import tensors_of
from mmswap.vision.resizing import resized
from mmswap.vision.torchless import TorchShapes

Array = np.ndarray[Any, Any]
_LOCK = threading.Lock()


class Blank(Array):
    """An array of one number that stands for all: any shape in a few bytes. What cannot be kept so is made real."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc.nout != 1 or ufunc.signature is not None:
            plain = [np.asarray(value) if isinstance(value, Blank) else value for value in inputs]
            return getattr(ufunc, method)(*plain, **kwargs)
        if out is not None:  # `image -= mean`: the name is bound to the same picture again
            return out[0]
        shape = np.broadcast_shapes(*[np.shape(value) for value in inputs])
        ones = [np.asarray(value).reshape(-1)[:1] for value in inputs]
        return blank(shape, ufunc(*ones, **kwargs).dtype) if shape else ufunc(*ones, **kwargs)[0]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        shape_only: Any = _SHAPES.get(function)
        if shape_only is not None:
            return shape_only(*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return blank(self.shape, dtype)


def blank(shape: Any, dtype: Any = np.float32) -> Blank:
    """A `Blank` of that shape."""
    shape = tuple(map(int, shape))
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, (0,) * len(shape)).view(Blank)


def _concatenated(arrays: Any, axis: int = 0, **_: Any) -> Blank:
    shapes = [list(np.shape(array)) for array in arrays]
    joined = shapes[0]
    joined[axis] = sum(shape[axis] for shape in [joined, *shapes[1:]])
    return blank(joined, np.asarray(arrays[0]).dtype)


def _stacked(arrays: Any, axis: int = 0, **_: Any) -> Blank:
    shape = list(np.shape(arrays[0]))
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, len(arrays))
    return blank(shape, np.asarray(arrays[0]).dtype)


def _padded(array: Any, pad_width: Any, *_: Any, **__: Any) -> Blank:
    pairs = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    return blank([extent + before + after for extent, (before, after) in zip(array.shape, pairs)], array.dtype)


_SHAPES = {
    np.concatenate: _concatenated,
    np.stack: _stacked,
    np.pad: _padded,
    np.broadcast_to: lambda array, shape, *_, **__: blank(shape, array.dtype),
    np.ascontiguousarray: lambda array, *_, **__: array,
}


class _Shapes(PilBackend):  # type: ignore[misc]
    """What `PilBackend` does to pixels, done to shapes. Stands right before it in the order of a family's classes."""

    def process_image(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def convert_to_rgb(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        return blank((*image.shape[:-2], *resized(image, size)))

    def rescale(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def normalize(self, image: Any, *args: Any, **kwargs: Any) -> Any:
        return image

    def center_crop(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        return blank((*image.shape[:-2], size.height, size.width))


def shapes_of(image_processor: Any, width: int, height: int, images: int = 1) -> dict[str, Any]:
    """What `image_processor` makes of `images` blank pictures of that size.

    Returns: name -> tensor: floats on meta (nothing is allocated for pixels), integers and masks with their values.
    """
    kind = type(image_processor)
    if isinstance(image_processor, TorchShapes):
        return as_tensors(_on_meta_or_host(image_processor, width, height, images))
    if not isinstance(image_processor, PilBackend):  # of the old kind: it is given what it knows
        found = image_processor([Image.new("RGB", (width, height))] * images, return_tensors="np")
        return as_tensors(found if isinstance(found, Mapping) else {"pixel_values": found})
    shaped = copy.copy(image_processor)
    shaped.__class__ = type(kind.__name__, (kind, _Shapes), {"__module__": kind.__module__})
    pictures = [blank((3, height, width)) for _ in range(images)]
    with _shapes_lent(kind):
        first = {"input_data_format": ChannelDimension.FIRST}  # a picture of 1 or 3 pixels a side could be either
        found = shaped(pictures, return_tensors=None, **first, **_more(image_processor))
    return as_tensors(found if isinstance(found, Mapping) else {"pixel_values": [found]})


def _on_meta_or_host(image_processor: Any, width: int, height: int, images: int) -> Mapping[str, Any]:
    """The features by shapes alone; a family that computes with tensors beside its pictures gets one zero for all."""
    more = _more(image_processor)
    try:
        meta = [torch.empty(3, height, width, device="meta")] * images
        found: Mapping[str, Any] = image_processor(meta, return_tensors="pt", **more)
        known = all(value.is_floating_point() or not value.is_meta for value in tensors_of(dict(found)))
    except (RuntimeError, NotImplementedError):
        known = False
    if not known:
        host = [torch.zeros(1).expand(3, height, width)] * images
        found = image_processor(host, return_tensors="pt", **more)
    return found


def _more(image_processor: Any) -> dict[str, Any]:
    """What a family's processor asks of its image processor besides."""
    return {"return_row_col_info": True} if "return_row_col_info" in image_processor._valid_kwargs_names else {}


@contextmanager
def _shapes_lent(kind: type) -> Iterator[None]:
    """A family's module may call numpy and transformers' `resize` itself: those names know `Blank` meanwhile."""
    modules = {sys.modules[base.__module__] for base in kind.__mro__ if base.__module__ in sys.modules}
    lent: dict[Any, Any] = {np: _NUMPY, image_transforms.resize: _resized}
    with _LOCK:
        names = [
            (module, name, value)
            for module in modules
            for name, value in vars(module).items()
            if value is np or value is image_transforms.resize
        ]
        for module, name, value in names:
            setattr(module, name, lent[value])
        try:
            yield
        finally:
            for module, name, value in names:
                setattr(module, name, value)


class _Numpy:
    """numpy, whose conversions leave `Blank` arrays what they are."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def asarray(self, value: Any, dtype: Any = None, **kwargs: Any) -> Any:
        if isinstance(value, Blank):
            return value if dtype is None else value.astype(dtype)
        if isinstance(value, (list, tuple)) and value:
            parts = [self.asarray(part) if isinstance(part, (list, tuple)) else part for part in value]
            if all(isinstance(part, Blank) and part.shape == parts[0].shape for part in parts):
                return _stacked(parts)
        return np.array(value, dtype=dtype, **kwargs)

    array = asarray


_NUMPY = _Numpy()


def _resized(image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(image, Blank):
        return image_transforms.resize(image, size, *args, **kwargs)
    last = kwargs.get("input_data_format") == ChannelDimension.LAST
    return blank((*size, image.shape[-1]) if last else (*image.shape[:-2], *size))


def as_tensors(features: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays and nested lists of them as tensors; floats go to meta. What is no array is kept as it is."""
    return {name: _as_tensor(value) for name, value in features.items()}


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple, np.ndarray, torch.Tensor)):
        parts = [_as_tensor(part) for part in value]
        if all(isinstance(part, torch.Tensor) and part.shape == parts[0].shape for part in parts):
            return torch.stack(parts)
        return parts
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (int, float)):
        value = np.asarray(value)
    if isinstance(value, torch.Tensor):
        return value.to("meta") if value.is_floating_point() else value
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f":
        return torch.empty(value.shape, dtype=torch.float32, device="meta")
    return torch.from_numpy(np.ascontiguousarray(np.asarray(value)))
