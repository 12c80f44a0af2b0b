"""Image processors run on blank pictures: the shapes, grids and masks that they give for real pictures of that size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import processor_folders
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor

from mmswap.vision.blank import Blank, blank, shapes_of

SIZES = [(100, 100), (400, 56), (57, 333), (640, 480)]


def real(processor: Any, width: int, height: int, images: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (height, width, 3), dtype=np.uint8)) for _ in range(images)]
    more = {"return_row_col_info": True} if "return_row_col_info" in processor._valid_kwargs_names else {}
    return dict(processor(pictures, return_tensors="pt", **more))


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, (list, tuple)) and not isinstance(found, torch.Tensor):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    wanted = torch.as_tensor(wanted)
    if wanted.is_floating_point():
        return found.shape == wanted.shape and found.is_meta
    return torch.equal(found.long(), wanted.long())


@pytest.mark.parametrize("name", processor_folders.FAMILIES)
def test_a_blank_picture_gives_what_a_real_one_gives(name: str, tmp_path: Any) -> None:
    folder = processor_folders.make_folder(tmp_path / name, name)
    processor = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    for width, height in SIZES:
        for images in (1, 2):
            found, wanted = shapes_of(processor, width, height, images), real(processor, width, height, images)
            assert found.keys() == wanted.keys()
            for key in wanted:
                assert same(found[key], wanted[key]), (key, width, height, images)


def test_48_megapixels_take_no_bytes(tmp_path: Any) -> None:
    processor = AutoImageProcessor.from_pretrained(
        str(processor_folders.make_folder(tmp_path / "qwen2_vl", "qwen2_vl")), backend="pil"
    )
    processor.size = {"shortest_edge": 56 * 56, "longest_edge": 100_000_000}
    tracemalloc.start()
    try:
        found = shapes_of(processor, 8000, 6000)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["image_grid_thw"].tolist() == [[1, 428, 572]]
    assert found["pixel_values"].shape == (428 * 572, 1176)
    assert most < 8 << 20


def test_the_processor_is_as_it_was(tmp_path: Any) -> None:
    folder = processor_folders.make_folder(tmp_path / "gemma4", "gemma4")
    processor = AutoImageProcessor.from_pretrained(str(folder), backend="pil")
    before = real(processor, 200, 100, 1)
    shapes_of(processor, 4000, 3000)
    after = real(processor, 200, 100, 1)
    assert all(torch.equal(torch.as_tensor(before[key]), torch.as_tensor(after[key])) for key in before)


def test_a_blank_array_keeps_its_shape_through_arithmetic_and_joins() -> None:
    array = blank((3, 4, 6))
    assert isinstance(array * 2.0 - 1, Blank)
    assert (array.astype(np.float64) / np.ones((3, 1, 1))).shape == (3, 4, 6)
    assert np.concatenate([array, array], axis=-1).shape == (3, 4, 12)
    assert np.stack([array, array], axis=-1).shape == (3, 4, 6, 2)
    assert np.pad(array, ((0, 0), (1, 2), (0, 3))).shape == (3, 7, 9)
    array -= 1
    assert array.shape == (3, 4, 6)
    assert float(array.sum()) == 0.0
