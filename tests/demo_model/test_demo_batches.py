"""Training sees what the image processor and the chat template will give the finished model."""

from random import Random

import numpy as np
import pytest
from batches import GRIDS, RowMaker, make_batch, picture_size, resized_grid, to_patches
from chat import question
from checkpoint import image_processor
from draw import draw
from labels import dense_labels
from tokenizer import make_tokenizer


@pytest.mark.parametrize("size", [(96, 96), (300, 200), (97, 211), (40, 40)])
def test_patches_equal_the_image_processor(size: tuple[int, int]) -> None:
    image = draw(Random(1), *size).image
    grid = resized_grid(*size)
    seen = image_processor()(images=[image], return_tensors="np")
    assert seen["image_grid_thw"].tolist() == [[1, grid[0] * 2, grid[1] * 2]]
    ours = to_patches(image, grid).reshape(-1, 3, 1, 64).repeat(2, 2).reshape(-1, 384)
    assert np.abs(ours - seen["pixel_values"]).max() < 0.02


def test_rows_equal_the_chat_template() -> None:
    tokenizer = make_tokenizer()
    scene = draw(Random(3), 96, 96, "one")
    maker = RowMaker(tokenizer, Random(4), (6, 6))
    for _ in range(20):
        (asked,) = maker._questions(scene)[:1]
        row = maker._chat([(0, [asked])])
        text = tokenizer.decode(row.ids)
        if "system" in text:
            continue
        turn = question(asked.text, scene.image)
        prompt = tokenizer.apply_chat_template(turn.messages, add_generation_prompt=True, tokenize=False)
        whole = prompt.replace("<|image_pad|>", "<|image_pad|>" * 36) + asked.answer + "<|im_end|>"
        assert row.ids == tokenizer(whole, add_special_tokens=False)["input_ids"]


def test_a_batch_is_a_function_of_its_seed() -> None:
    tokenizer = make_tokenizer()
    first, again = (make_batch(tokenizer, Random("0/speak/7"), 6) for _ in range(2))
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.patches, again.patches)


def test_picture_sizes_give_the_wanted_grid() -> None:
    for seed, grid in enumerate(GRIDS):
        assert resized_grid(*picture_size(Random(seed), grid)) == grid


def test_the_map_of_centres_adds_up_to_the_count() -> None:
    for seed in range(20):
        scene = draw(Random(seed), 112, 80, "groups")
        centres, classes = dense_labels(scene, (5, 7))
        assert centres[:, 1:].sum() == pytest.approx(len(scene.things), abs=1e-4)
        assert (classes[:, 0] > 0).any()
