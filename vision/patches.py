"""How many patches each picture really has, read from what the image processor made of it. Knows no text.

A patch is what the tower's patch embedding makes one vector of; padding is not counted. `count_patches` answers for all
families by the structure of the features, not by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_PATCHES = ("flattened_patches", "image_patches")


def patch_side(hf: Any, config: Any) -> int | None:
    """Side of a patch in pixels, from the model's config or else from the processor; None if nobody says."""
    vision = getattr(config, "vision_config", None)
    for holder in (vision, hf.image_processor, hf):
        value = getattr(holder, "patch_size", None)
        if isinstance(value, (list, tuple)):
            return int(value[0])
        if isinstance(value, int):
            return value
        if value:
            return int(dict(value)["height"])
    return None


def count_patches(features: Mapping[str, Any], image_processor: Any, side: int | None, count: int) -> list[int]:
    """Patches of each of `count` pictures, in their order.

    Args:
        features: what the image processor returned for all of them.
        side: of a patch, in pixels; if None, tiles are counted instead.
    """
    if "image_grid_thw" in features:
        return [int(np.prod(_list(grid))) for grid in features["image_grid_thw"]]
    if "image_grid_hw" in features:
        return [int(np.prod(_list(grid))) for grid in features["image_grid_hw"]]
    if "spatial_shapes" in features:  # [tiles, 2]
        areas = [int(np.prod(_list(size))) for size in features["spatial_shapes"]]
        return [sum(areas) // count] * count
    if "target_sizes" in features and "num_patches_per_image" in features:
        return _by_slices(features)
    if "image_position_ids" in features:  # [pictures, patches, 2], -1 where padded
        return [int((np.asarray(_list(p))[:, 0] >= 0).sum()) for p in features["image_position_ids"]]
    name, pixels = _pixels(features)
    shape = _shape(pixels)
    if name in _PATCHES or len(shape) < 3 or (shape[-1] == 3 and shape[-3] != 3):  # cut into patches already
        return [_rows(features, shape) // count] * count
    height, width = shape[-2:]
    sizes = [tuple(_list(size)) for size in features.get("image_sizes", ())]
    if sizes and getattr(image_processor, "image_grid_pinpoints", None) is None:
        unit = side or 1
        return [(h // unit) * (w // unit) for h, w in sizes]
    tile = (height // side) * (width // side) if side else 1
    there = _tile_count(pixels)
    tiles = _tiles(features, image_processor, sizes, (height, width), [there // count] * count)
    if len(tiles) != count or sum(tiles) > there:  # a family that counts in its own way: what there is, shared evenly
        tiles = [there // count] * count
    return [tile * number for number in tiles]


def _pixels(features: Mapping[str, Any]) -> tuple[str, Any]:
    """The pictures, by whatever name: most say `pixel_values`, a few `flattened_patches` or `image_patches`."""
    return next(item for item in features.items() if item[0].startswith(("pixel_values", *_PATCHES)))


def _rows(features: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Patches where each is a row of its own: [N, ...], or [pictures, N, C] with padding unless `rows` says better."""
    if "rows" in features and "cols" in features:
        return sum(int(rows) * int(cols) for rows, cols in zip(_flat(features["rows"]), _flat(features["cols"])))
    return shape[0] * shape[1] if len(shape) == 3 and shape[-1] != 3 else shape[0]


def _tiles(
    features: Mapping[str, Any], processor: Any, sizes: list[Any], tile: tuple[int, int], even: list[int]
) -> list[int]:
    """Tiles of each picture; `even` where nobody says how many each has."""
    if sizes:
        return _by_pinpoints(features, processor, sizes, tile)
    if "rows" in features:
        rows, cols = (_flat(features[name]) for name in ("rows", "cols"))
        return [r * c + 1 for r, c in zip(rows, cols)]
    for name, more in (("num_tiles", 0), ("num_patches", 0), ("num_crops", 1)):
        if name in features:
            return [int(n) + more for n in _flat(features[name])]
    if "aspect_ratios" in features:  # Llama 4: rows and columns of tiles, and an overview where there are several
        grids = [int(np.prod(_list(grid))) for grid in features["aspect_ratios"]]
        return [tiles + (tiles > 1) for tiles in grids]
    return even


def _by_pinpoints(features: Mapping[str, Any], processor: Any, sizes: list[Any], tile: tuple[int, int]) -> list[int]:
    from transformers.image_processing_utils import select_best_resolution

    groups = [int(n) for n in _flat(features.get("batch_num_images", [1] * len(sizes)))]
    alone = [n == 1 for n in groups for _ in range(n)]  # several pictures in one prompt are not cut into tiles
    tiles = []
    for size, single in zip(sizes, alone):
        best = select_best_resolution(list(size), processor.image_grid_pinpoints)
        tiles.append(1 + (best[0] // tile[0]) * (best[1] // tile[1]) if single else 1)
    return tiles


def _by_slices(features: Mapping[str, Any]) -> list[int]:
    areas = [int(np.prod(_list(size))) for size in features["target_sizes"]]
    ends = np.cumsum([int(n) for n in _flat(features["num_patches_per_image"])]).tolist()
    return [sum(areas[start:end]) for start, end in zip([0, *ends], ends)]


def _shape(values: Any) -> tuple[int, ...]:
    while isinstance(values, (list, tuple)):
        values = values[0]
    return tuple(values.shape)


def _tile_count(values: Any) -> int:
    """How many pictures of [3, H, W] the pixel values hold, padding included."""
    if isinstance(values, (list, tuple)):
        return sum(_tile_count(value) for value in values)
    return int(np.prod(values.shape[:-3]))


def _list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _flat(value: Any) -> list[Any]:
    value = _list(value)
    return [inner for item in value for inner in _flat(item)] if isinstance(value, (list, tuple)) else [value]
