"""Processors of fifteen families, put together without torchvision: tokens and patches of the real picture."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from processor_folders import FAMILIES, make_folder

from mmswap.errors import ImageError, ModelError, UserError
from mmswap.vision.assemble import Absent
from mmswap.vision.patches import count_patches
from mmswap.vision.processor import Prepared, Processor, load_processor

SIZES = [(300, 200), (90, 140)]


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Processor]:
    folder = tmp_path_factory.mktemp("families")
    return {name: load_processor(make_folder(folder / name, name)) for name in FAMILIES}


def pictures_of(sizes: list[tuple[int, int]]) -> list[Image.Image]:
    return [Image.new("RGB", size, (index * 40, 90, 200)) for index, size in enumerate(sizes)]


def prompt(processor: Processor, count: int) -> str:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "look"}]
    for index in range(count):
        parts += [{"type": "image"}, {"type": "text", "text": f"text {index}"}]
    return processor.render([{"role": "user", "content": parts}])


def prepare(processor: Processor, sizes: list[tuple[int, int]]) -> Prepared:
    return processor.prepare(prompt(processor, len(sizes)), pictures_of(sizes))


def rule_of(name: str, count: int) -> Any:
    family = FAMILIES[name]
    return family.pair if family.pair is not None and count > 1 else family.rule


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sizes", [SIZES[:1], SIZES[1:], [(500, 19)], SIZES, [SIZES[0], SIZES[0]], [*SIZES, SIZES[0]]])
def test_tokens_and_patches_are_those_of_the_familys_rule(
    name: str, sizes: list[tuple[int, int]], processors: dict[str, Processor]
) -> None:
    prepared = prepare(processors[name], sizes)
    assert [(info.width, info.height) for info in prepared.images] == sizes
    rule = rule_of(name, len(sizes))
    if rule is not None:
        assert [(info.tokens, info.patches) for info in prepared.images] == [rule(*size) for size in sizes]
    config = json.loads((Path(processors[name].tokenizer.name_or_path) / "config.json").read_text())
    ids = prepared.inputs["input_ids"]
    assert ids.shape[0] == 1
    assert ids[0].tolist().count(config["image_token_id"]) == sum(info.tokens for info in prepared.images)
    assert all(isinstance(value, torch.Tensor) for value in prepared.inputs.values())


@pytest.mark.parametrize("sizes", [[(300, 200)], [(90, 140), (300, 200)]])
def test_tiles_and_slices_add_up(sizes: list[tuple[int, int]], processors: dict[str, Processor]) -> None:
    # InternVL and MiniCPM choose tiles by rules of their own; what must hold is seen in the pixels themselves.
    internvl, minicpm = prepare(processors["internvl"], sizes), prepare(processors["minicpmv4_6"], sizes)
    tiles = internvl.inputs["pixel_values"].shape[0]
    assert sum(info.patches for info in internvl.images) == 16 * tiles
    assert sum(info.tokens for info in internvl.images) == 4 * tiles
    assert sum(info.patches for info in minicpm.images) == minicpm.inputs["pixel_values"].shape[-1] // 14
    for info in (*internvl.images, *minicpm.images):
        assert info.patches % info.tokens == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_transformers_own_call(name: str, processors: dict[str, Processor]) -> None:
    processor = processors[name]
    text = prompt(processor, 1)
    images = pictures_of(SIZES[:1])
    plain = processor._hf(text=text, images=images if name == "got_ocr2" else [images], return_tensors="pt")
    ours = processor.prepare(text, pictures_of(SIZES[:1])).inputs
    assert set(ours) == {key for key, value in plain.items() if isinstance(value, torch.Tensor)} - {"labels"}
    for key, value in ours.items():
        assert torch.equal(value, plain[key]), key


@pytest.mark.parametrize("name", FAMILIES)
def test_text_alone_is_prepared(name: str, processors: dict[str, Processor]) -> None:
    prepared = prepare(processors[name], [])
    assert prepared.images == ()
    assert "pixel_values" not in prepared.inputs
    assert prepared.inputs["input_ids"].shape[1] > 3


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_pictures_is_refused(name: str, count: int, processors: dict[str, Processor]) -> None:
    text = prompt(processors[name], 2)
    with pytest.raises(UserError, match=f"2 places for pictures.* and {count} were given"):
        processors[name].prepare(text, pictures_of([(30, 30)] * count))


@pytest.mark.parametrize(
    ("size", "tokens"), [((1, 1), 4), ((3, 1), 8), ((1, 3), 8), ((4, 4), 4), ((500, 19), 18), ((1000, 5), 29),
                         ((27, 27), 4), ((29, 57), 6), ((112, 112), 16), ((640, 480), 391)],
)  # fmt: skip
def test_thin_and_tiny_pictures(size: tuple[int, int], tokens: int, processors: dict[str, Processor]) -> None:
    prepared = processors["qwen2_vl"].prepare(prompt(processors["qwen2_vl"], 1), [Image.new("RGB", size, "red")])
    assert prepared.images[0].tokens == tokens
    # Every pixel is red: were the colour axis mistaken, the three channels would mix.
    values = prepared.inputs["pixel_values"].view(-1, 3, 2 * 14 * 14)
    assert all(values[:, channel].min() == values[:, channel].max() for channel in range(3))
    assert values[0, 0, 0] > 0 > values[0, 1, 0]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (3, 7), (4, 4)])
def test_the_colour_axis_is_never_mistaken(name: str, size: tuple[int, int], processors: dict[str, Processor]) -> None:
    small = processors[name].prepare(prompt(processors[name], 1), [Image.new("RGB", size, (255, 0, 0))])
    grey = processors[name].prepare(prompt(processors[name], 1), [Image.new("RGB", size, (255, 255, 255))])
    colours = len(small.inputs["pixel_values"].unique())
    assert colours <= 4  # three channels, perhaps padding
    assert not torch.equal(small.inputs["pixel_values"], grey.inputs["pixel_values"])


def test_order_of_pictures_is_kept(processors: dict[str, Processor]) -> None:
    processor = processors["qwen2_vl"]
    red, green, blue = (Image.new("RGB", (112, 112), colour) for colour in ("red", "lime", "blue"))
    prepared = processor.prepare(prompt(processor, 3), [red, green, blue])
    assert [info.tokens for info in prepared.images] == [16, 16, 16]
    blocks = prepared.inputs["pixel_values"].split([info.patches for info in prepared.images])
    brightest = [block.view(-1, 3, 392).mean(dim=(0, 2)).argmax().item() for block in blocks]
    assert brightest == [0, 1, 2]
    ids = prepared.inputs["input_ids"][0].tolist()
    pad, start = processor.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|vision_start|>"])
    assert ids.count(start) == 3
    assert [ids[i + 1 : i + 17] == [pad] * 16 for i, token in enumerate(ids) if token == start] == [True] * 3
    swapped = processor.prepare(prompt(processor, 3), [blue, green, red])
    assert torch.equal(swapped.inputs["input_ids"], prepared.inputs["input_ids"])
    assert not torch.equal(swapped.inputs["pixel_values"], prepared.inputs["pixel_values"])


def test_a_call_leaves_the_processor_as_it_was(processors: dict[str, Processor]) -> None:
    for name in ("qwen2_vl", "idefics3", "llava_onevision"):
        hf = processors[name]._hf
        before = copy.copy(hf.__dict__)
        prepare(processors[name], SIZES)
        assert hf.__dict__ == before
        assert hf.tokenizer is processors[name].tokenizer


def test_half_a_surrogate_pair_is_refused(processors: dict[str, Processor]) -> None:
    processor = processors["qwen2_vl"]
    assert processor.dangerous("a\ud800b")
    with pytest.raises(UserError, match="surrogate"):
        processor.prepare("a\ud800b")
    with pytest.raises(UserError, match="surrogate"):
        processor.prepare("S", (), {"S": "a\ud800b"})


def test_a_picture_that_the_family_refuses_is_one_sentence(processors: dict[str, Processor]) -> None:
    processor = processors["qwen2_vl"]
    with pytest.raises(ImageError, match=r"Qwen2VLProcessor refuses this prompt: .*aspect ratio.*\.$"):
        processor.prepare(prompt(processor, 1), [Image.new("RGB", (900, 3))])


def test_a_family_that_counts_tiles_in_its_own_way_shares_what_is_there() -> None:
    # Aria gives the largest number of crops as one number for all pictures.
    features = {"pixel_values": torch.zeros(6, 3, 56, 56), "num_crops": torch.tensor(3)}
    assert count_patches(features, object(), 14, 2) == [48, 48]
    assert count_patches({"pixel_values": torch.zeros(2, 3, 56, 56)}, object(), None, 2) == [1, 1]


def test_a_part_that_is_absent_says_so() -> None:
    absent = Absent()
    assert absent.merge_size is None
    with pytest.raises(ModelError, match="a part that is not loaded"):
        absent("video")


def test_bos_is_not_written_twice(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "bos", "qwen2_vl", template="<|endoftext|>{{ messages[0]['content'] }}")
    state = json.loads((folder / "tokenizer.json").read_text())
    state["post_processor"] = {
        "type": "TemplateProcessing", "pair": [], "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [_id(state)], "tokens": ["<|endoftext|>"]}},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(state))
    processor = load_processor(folder)
    rendered = processor.render([{"role": "user", "content": "hello"}])
    bos = processor.tokenizer.bos_token_id
    for text in (rendered, "hello"):
        ids = processor.prepare(text).inputs["input_ids"][0].tolist()
        assert ids.count(bos) == 1
        assert ids[0] == bos


def _id(state: dict[str, Any]) -> int:
    return next(token["id"] for token in state["added_tokens"] if token["content"] == "<|endoftext|>")
