"""What each patch of a picture shows: the dense targets that teach the tower to see before it learns to speak."""

import numpy as np
from draw import COLOURS, DIGITS, SHAPES, WORDS, Scene
from PIL import Image, ImageDraw

COVERS = ["nothing", *SHAPES, "writing"]
PAINTS = ["nothing", *COLOURS]
CHARACTERS = ["nothing", *sorted({*"".join(WORDS), *DIGITS})]
TEXTS = ["nothing", *DIGITS, *WORDS]
FINE = 4  # label pixels per patch side


def dense_labels(scene: Scene, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """-> centres [N, 1 + shapes] (soft), classes [N, 3] (cover, paint, character), both in merge order."""
    rows, columns = grid[0] * 2, grid[1] * 2
    centres = np.zeros((rows, columns, 1 + len(SHAPES)), np.float32)
    for thing in scene.things:
        _splat(
            centres[..., COVERS.index(thing.shape)],
            thing.y / scene.image.height * rows,
            thing.x / scene.image.width * columns,
        )
    centres[..., 0] = 1 - centres[..., 1:].sum(-1)
    classes = np.zeros((rows, columns, 3), np.int64)
    cover = _cover(scene, rows, columns)
    classes[..., 0], classes[..., 1] = cover // 16, cover % 16
    if scene.writing:
        middles = (np.arange(columns) + 0.5) * scene.image.width / columns
        place = np.searchsorted(scene.writing.edges, middles) - 1
        for column, index in enumerate(place):
            if 0 <= index < len(scene.writing.text):
                character = CHARACTERS.index(scene.writing.text[index])
                classes[:, column, 2] = np.where(cover[:, column] > 0, character, 0)
    return _merge_order(centres, grid), _merge_order(classes, grid)


def whole_labels(scene: Scene) -> tuple[int, int, int]:
    """-> number of things, index of the text, index of the background colour."""
    return (
        len(scene.things),
        TEXTS.index(scene.writing.text) if scene.writing else 0,
        list(COLOURS).index(scene.background),
    )


def thirds(grid: tuple[int, int]) -> np.ndarray:
    """Which third of the height and of the width each patch lies in: [N, 2] in merge order."""
    lines = [((np.arange(2 * cells) + 0.5) * 3 / (2 * cells)).astype(np.int64) for cells in grid]
    return _merge_order(np.stack(np.meshgrid(*lines, indexing="ij"), -1), grid)


def _splat(plane: np.ndarray, y: float, x: float) -> None:
    """Share one unit among the four nearest patches, so that the plane's sum is the count."""
    y, x = min(max(y - 0.5, 0), plane.shape[0] - 1.001), min(max(x - 0.5, 0), plane.shape[1] - 1.001)
    top, left = int(y), int(x)
    down, right = y - top, x - left
    plane[top, left] += (1 - down) * (1 - right)
    plane[top, left + 1] += (1 - down) * right
    plane[top + 1, left] += down * (1 - right)
    plane[top + 1, left + 1] += down * right


def _cover(scene: Scene, rows: int, columns: int) -> np.ndarray:
    """[rows, columns] of 16 * cover + paint where a quarter of the patch is covered, else 0."""
    mask = Image.new("L", (columns * FINE, rows * FINE))
    pen = ImageDraw.Draw(mask)
    wide, tall = columns * FINE / scene.image.width, rows * FINE / scene.image.height
    for thing in scene.things:
        corners = [(x * wide, y * tall) for x, y in thing.corners]
        value = 16 * COVERS.index(thing.shape) + PAINTS.index(thing.colour)
        pen.ellipse(corners, fill=value) if thing.shape == "circle" else pen.polygon(corners, fill=value)
    if scene.writing:
        left, top, right, bottom = scene.writing.box
        value = 16 * COVERS.index("writing") + PAINTS.index(scene.writing.colour)
        pen.rectangle((left * wide, top * tall, right * wide - 1, bottom * tall - 1), fill=value)
    fine = np.asarray(mask).reshape(rows, FINE, columns, FINE).transpose(0, 2, 1, 3).reshape(rows, columns, FINE * FINE)
    return np.where((fine > 0).sum(-1) >= FINE, fine.max(-1), 0).astype(np.int64)


def _merge_order(values: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    return values.reshape(grid[0], 2, grid[1], 2, -1).transpose(0, 2, 1, 3, 4).reshape(grid[0] * grid[1] * 4, -1)
