"""Image processors that exist for torchvision only give shapes without it, and cannot be mistaken for real ones."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers
from transformers import Llama4Config

from mmswap.vision.blank import shapes_of
from mmswap.vision.nominal import nominal_processor
from mmswap.vision.torchless import torchless_class


def llama4(width: int, height: int) -> torch.Tensor:
    config = Llama4Config(vision_config={"image_size": 336, "patch_size": 14})
    pixels = shapes_of(nominal_processor(config), width, height)["pixel_values"]
    assert isinstance(pixels, torch.Tensor)
    return pixels


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [(336, 336, 1), (672, 336, 3), (672, 672, 5), (1344, 336, 5), (5376, 336, 17), (2000, 2000, 17)],
)
def test_llama4_is_cut_into_tiles_and_an_overview(width: int, height: int, tiles: int) -> None:
    assert llama4(width, height).shape == (tiles, 3, 336, 336)
    assert llama4(width, height).is_meta


def test_nothing_stands_in_for_torchvision_afterwards() -> None:
    had = "torchvision" in sys.modules
    assert torchless_class("llama4", "Llama4ImageProcessor") is not None
    assert ("torchvision" in sys.modules) is had
    real = sys.modules.get("transformers.models.llama4.image_processing_llama4")
    assert real is None or hasattr(sys.modules["torchvision"], "__version__")


def test_a_class_or_file_that_is_not_there_is_none() -> None:
    assert torchless_class("llama4", "NoSuchProcessor") is None
    assert torchless_class("no_such_family", "Llama4ImageProcessor") is None
    assert transformers.__version__
