"""Training batches: pictures of one grid size and rows of chat about them. Batch i is a function of (seed, phase, i).

A row shows a picture once and asks several questions, as blocks that do not see each other; or it is a plain chat,
sometimes about two pictures one after the other; or it holds no picture and asks what the model can do.
"""

import math
from dataclasses import dataclass, field
from random import Random

import numpy as np
from checkpoint import CELL, LEAST_CELLS, MERGE, MOST_CELLS, PATCH
from draw import Scene, draw
from labels import dense_labels, whole_labels
from PIL import Image
from questions import Question, capability, questions
from tokenizer import SYSTEMS
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

Grid = tuple[int, int]  # rows, columns of cells
GRIDS = [
    (rows, columns)
    for rows in range(3, 11)
    for columns in range(3, 11)
    if LEAST_CELLS <= rows * columns <= MOST_CELLS and max(rows, columns) <= 3.4 * min(rows, columns)
]
SMALL_GRIDS = [(3, 3), (4, 4), (3, 4), (4, 3), (3, 5), (5, 3)]
SHAPES_ONLY = ["one", "one", "same", "groups"]
BUSY = ["one", "one", "same", "same", "groups", "groups", "groups", "groups", "digit", "word"]


@dataclass(slots=True)
class Batch:
    grid: Grid
    patches: np.ndarray  # [B, N, 3*p*p] float16
    centres: np.ndarray  # [B, N, 1 + shapes]
    classes: np.ndarray  # [B, N, 3]
    whole: np.ndarray  # [B, 3]
    ids: np.ndarray | None = None  # [R, L]
    positions: np.ndarray | None = None  # [3, R, L]
    blocks: np.ndarray | None = None  # [R, L]: 0 seen by all, k > 0 seen by block k, -1 padding
    labels: np.ndarray | None = None  # [R, L]
    slots: np.ndarray | None = None  # [B * N/4] flat places of the picture tokens, in picture order
    kinds: list[str] = field(default_factory=list)  # of each answer, row by row


@dataclass(slots=True)
class Row:
    """One sequence under construction; keeps M-RoPE positions and attention blocks."""

    ids: list[int] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    pictures: list[tuple[int, int]] = field(default_factory=list)  # (picture, first token)
    kinds: list[str] = field(default_factory=list)
    next: int = 0

    def add(self, ids: list[int], block: int = 0, answer: bool = False) -> None:
        self.ids += ids
        self.positions.append(np.arange(self.next, self.next + len(ids))[None].repeat(3, 0))
        self.blocks += [block] * len(ids)
        self.labels += ids if answer else [-100] * len(ids)
        self.next += len(ids)

    def add_picture(self, picture: int, token: int, grid: Grid) -> None:
        rows, columns = grid
        y, x = np.divmod(np.arange(rows * columns), columns)
        self.pictures.append((picture, len(self.ids)))
        self.ids += [token] * (rows * columns)
        self.positions.append(np.stack([np.zeros_like(y), y, x]) + self.next)
        self.blocks += [0] * (rows * columns)
        self.labels += [-100] * (rows * columns)
        self.next += max(grid)


def picture_size(rng: Random, grid: Grid) -> tuple[int, int]:
    """A (width, height) that the image processor resizes to the grid; often the grid's own size."""
    rows, columns = grid
    for _ in range(20):
        if rng.random() < 0.3:
            break
        scale = (
            rng.uniform(0.7, 1.3)
            if rng.random() < 0.4
            else rng.uniform(1.3, 3.6)
            if rng.random() < 0.95
            else rng.uniform(4, 7)
        )
        height, width = (round(scale * (cells + rng.uniform(-0.5, 1)) * CELL) for cells in grid)
        if min(width, height) > 30 and resized_grid(width, height) == grid:
            return width, height
    return columns * CELL, rows * CELL


def resized_grid(width: int, height: int) -> Grid:
    tall, wide = smart_resize(height, width, CELL, LEAST_CELLS * CELL**2, MOST_CELLS * CELL**2)
    return tall // CELL, wide // CELL


def to_patches(image: Image.Image, grid: Grid) -> np.ndarray:
    """One frame as the image processor cuts it: [4*rows*columns, 3*p*p] in merge order."""
    rows, columns = grid
    if image.size != (columns * CELL, rows * CELL):
        image = image.resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
    pixels = np.asarray(image, dtype=np.float32) / 127.5 - 1
    pixels = pixels.transpose(2, 0, 1).reshape(3, rows, MERGE, PATCH, columns, MERGE, PATCH)
    return pixels.transpose(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns * MERGE**2, 3 * PATCH**2)


def make_batch(
    tokenizer: PreTrainedTokenizerFast,
    rng: Random,
    size: int,
    small: bool = False,
    plain: bool = False,
    chat: bool = True,
    busy: bool = False,
    blocks: int = 5,
) -> Batch:
    grid = rng.choice(SMALL_GRIDS if small else GRIDS)
    if math.dist(grid, (5.5, 5.5)) > 3 and rng.random() < 0.5:  # very long pictures come less often
        grid = rng.choice(GRIDS if not small else SMALL_GRIDS)
    scenes = []
    for _ in range(size):
        width, height = picture_size(rng, grid) if not small else (grid[1] * CELL, grid[0] * CELL)
        layout = rng.choice(SHAPES_ONLY if plain else BUSY) if plain or busy else None
        scenes.append(draw(rng, width, height, layout, plain))
    dense = [dense_labels(scene, grid) for scene in scenes]
    batch = Batch(
        grid,
        np.stack([to_patches(scene.image, grid) for scene in scenes]).astype(np.float16),
        np.stack([centres for centres, _ in dense]),
        np.stack([classes for _, classes in dense]),
        np.array([whole_labels(scene) for scene in scenes]),
    )
    if chat:
        _fill(batch, RowMaker(tokenizer, rng, grid).rows(scenes, blocks))
    return batch


class RowMaker:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random, grid: Grid):
        self.tokenizer, self.rng, self.grid = tokenizer, rng, grid
        self.image, self.end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<|im_end|>"))

    def rows(self, scenes: list[Scene], blocks: int) -> list[Row]:
        asked = [self._questions(scene) for scene in scenes]
        if self.rng.random() < 0.06:  # rows of two pictures are long: keep them to batches of their own
            pairs = range(0, len(scenes) - 1, 2)
            rows = [self._chat([(i, asked[i][:2]), (i + 1, asked[i + 1][:2])]) for i in pairs]
            return rows + [self._blocks(i, asked[i][:blocks]) for i in range(2 * len(pairs), len(scenes))]
        rows = [self._no_picture() for _ in range(len(scenes) // 24)]
        for index, some in enumerate(asked):
            style = self.rng.choices(["blocks", "chat", "last"], [0.8, 0.13, 0.07])[0]
            if style == "chat":
                rows.append(self._chat([(index, some[: blocks - 1])]))
            elif style == "last":
                rows.append(self._picture_last(index, some[0]))
            else:
                rows.append(self._blocks(index, some[:blocks]))
        return rows

    def _questions(self, scene: Scene) -> list[Question]:
        asked = questions(scene, self.rng)
        self.rng.shuffle(asked)
        if self.rng.random() < 0.06:
            asked[0] = capability(self.rng)
        return asked

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _start(self) -> Row:
        row = Row()
        if self.rng.random() < 0.12:
            row.add(self._encode(f"<|im_start|>system\n{self.rng.choice(SYSTEMS)}<|im_end|>\n"))
        row.add(self._encode("<|im_start|>user\n"))
        return row

    def _show(self, row: Row, picture: int) -> None:
        row.add(self._encode("<|vision_start|>"))
        row.add_picture(picture, self.image, self.grid)
        row.add(self._encode("<|vision_end|>"))

    def _answer(self, row: Row, question: Question, block: int = 0, ask: bool = True) -> None:
        row.add(self._encode((question.text if ask else "") + "<|im_end|>\n<|im_start|>assistant\n"), block)
        row.add([*self._encode(question.answer), self.end], block, answer=True)
        row.kinds.append(question.kind)

    def _blocks(self, picture: int, asked: list[Question]) -> Row:
        row = self._start()
        self._show(row, picture)
        start = row.next
        for number, question in enumerate(asked):
            row.next = start
            self._answer(row, question, number + 1)
        return row

    def _chat(self, turns: list[tuple[int, list[Question]]]) -> Row:
        row = self._start()
        for turn, (picture, asked) in enumerate(turns):
            for number, question in enumerate(asked):
                if turn or number:
                    row.add(self._encode("\n<|im_start|>user\n"))
                if number == 0:
                    self._show(row, picture)
                self._answer(row, question)
        return row

    def _picture_last(self, picture: int, question: Question) -> Row:
        row = self._start()
        row.add(self._encode(question.text))
        self._show(row, picture)
        self._answer(row, question, ask=False)
        return row

    def _no_picture(self) -> Row:
        row = self._start()
        self._answer(row, capability(self.rng))
        return row


def _fill(batch: Batch, rows: list[Row]) -> None:
    length = max(len(row.ids) for row in rows)

    def padded(lists: list[list[int]], value: int) -> np.ndarray:
        return np.array([items + [value] * (length - len(items)) for items in lists])

    batch.ids, batch.blocks = padded([r.ids for r in rows], 0), padded([r.blocks for r in rows], -1)
    batch.labels = padded([r.labels for r in rows], -100)
    batch.positions = np.zeros((3, len(rows), length), np.int64)
    cells = batch.grid[0] * batch.grid[1]
    batch.slots = np.zeros(len(batch.patches) * cells, np.int64)
    for number, row in enumerate(rows):
        batch.positions[:, number, : len(row.ids)] = np.concatenate(row.positions, 1)
        for picture, first in row.pictures:
            batch.slots[picture * cells : (picture + 1) * cells] = number * length + first + np.arange(cells)
        batch.kinds += row.kinds
