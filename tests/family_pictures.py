"""What the processors of the families in `families.py` give for one picture: pixels in the layout that each wants.

`PICTURES[name](vision_config, size, draw)`: `size` 1, 2 or 3 is small, middle, large, or a count of tiles where the
tower sees one size only; `draw(*shape)` makes pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Draw = Callable[..., Tensor]
Picture = Callable[[Any, int, Draw], dict[str, Tensor]]

_GRIDS = {1: (4, 4), 2: (6, 8), 3: (12, 8)}  # rows and columns of patches


def _native(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = _GRIDS[size]
    patch = 3 * vision.temporal_patch_size * vision.patch_size**2
    return {"pixel_values": draw(rows * columns, patch), "image_grid_thw": torch.tensor([[1, rows, columns]])}


def _patches(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = _GRIDS[size]
    pixels = draw(rows * columns, 3, vision.patch_size, vision.patch_size)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, rows, columns]])}


def _tiles(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    edge = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
    return {"pixel_values": draw(size, 3, edge, edge)}


def _one_tile(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    return {"pixel_values": draw(1, 3, 64, 64)}


def _masked_tiles(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    mask = torch.ones(1, size, 64, 64, dtype=torch.bool)
    mask[0, -1, 48:] = False
    return {"pixel_values": draw(1, size, 3, 64, 64), "pixel_attention_mask": mask}


def _flat_masked_tiles(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    return {"pixel_values": draw(size, 3, 64, 64), "pixel_mask": torch.ones(size, 64, 64, dtype=torch.bool)}


def _pinned_tiles(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    height, width = {1: (50, 40), 2: (50, 100), 3: (100, 90)}[size]
    tiles = {1: 2, 2: 3, 3: 5}[size]
    return {"pixel_values": draw(1, tiles, 3, 56, 56), "image_sizes": torch.tensor([[height, width]])}


def _sized(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = _GRIDS[size]
    edge = vision.patch_size
    sizes = torch.tensor([[rows * edge, columns * edge]])
    return {"pixel_values": draw(1, 3, rows * edge, columns * edge), "image_sizes": sizes}


def _placed(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = {1: (3, 6), 2: (6, 6), 3: (6, 9)}[size]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten()], -1)[None]
    return {"pixel_values": draw(1, rows * columns, 3 * vision.patch_size**2), "image_position_ids": places}


def _mllama(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    used = 1 << (size - 1)
    kind, tiles = torch.tensor([[{1: 1, 2: 2, 3: 4}[size]]]), torch.tensor([[[1] * used + [0] * (4 - used)]])
    pixels = draw(1, 1, 4, 3, vision.image_size, vision.image_size)
    return {"pixel_values": pixels, "aspect_ratio_ids": kind, "aspect_ratio_mask": tiles}


def _packed(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = {1: (4, 4), 2: (4, 8), 3: (8, 12)}[size]
    pixels = draw(1, 3, vision.patch_size, rows * columns * vision.patch_size)
    return {"pixel_values": pixels, "target_sizes": torch.tensor([[rows, columns]], dtype=torch.int32)}


def _padded(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    rows, columns = {1: (2, 4), 2: (4, 4), 3: (6, 8)}[size]
    pixels = torch.zeros(1, 64, 3 * vision.patch_size**2)
    pixels[0, : rows * columns] = draw(rows * columns, pixels.shape[-1])
    mask = (torch.arange(64) < rows * columns).long()[None]
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[rows, columns]])}


def _video_llava(vision: Any, size: int, draw: Draw) -> dict[str, Tensor]:
    return {"pixel_values_images": draw(size, 3, vision.image_size, vision.image_size)}


_GROUPS: dict[Picture, str] = {
    _native: "qwen2_vl qwen2_5_vl qwen3_vl qwen3_5 glm4v qwen3_vl_moe "
    "glm46v glm4v_moe qwen3_5_moe qwen2_5_omni_thinker",
    _patches: "paddleocr_vl",
    _tiles: "gemma3 llava paligemma internvl aya_vision cohere2_vision vipllava got_ocr2 ovis2 blip_2 deepseek_vl",
    _one_tile: "florence2",
    _masked_tiles: "idefics3 smolvlm idefics2",
    _flat_masked_tiles: "aria",
    _pinned_tiles: "llava_next llava_onevision llava_next_video",
    _sized: "mistral3 pixtral lighton_ocr",
    _placed: "gemma4",
    _mllama: "mllama",
    _packed: "minicpmv4_6 minicpmv4_7",
    _padded: "lfm2_vl",
    _video_llava: "video_llava",
}
PICTURES: dict[str, Picture] = {name: make for make, names in _GROUPS.items() for name in names.split()}
