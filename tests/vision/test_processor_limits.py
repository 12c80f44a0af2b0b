"""--image-min-pixels and --image-max-pixels act on what the tower gets, in every family (kind A12 of the cases)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processor_folders import FAMILIES, make_folder

from mmswap.config import ImageConfig, PixelLimits
from mmswap.errors import OptionError
from mmswap.vision.limits import Limiter
from mmswap.vision.processor import ImageInfo, Prepared, Processor, load_processor

ONE_SIZE = (
    "gemma3",
    "llava",
    "paligemma",
    "got_ocr2",
    "gemma4",
)  # gemma4's test folder has its smallest number of soft tokens
NEVER_ENLARGED = ("smolvlm", "idefics3", "internvl")
NATIVE = ("qwen2_vl", "qwen3_vl", "glm4v")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("limits")
    return {name: make_folder(folder / name, name) for name in FAMILIES}


def load(folder: Path, low: int | None = None, high: int | None = None) -> Processor:
    return load_processor(folder, ImageConfig(min_pixels=low, max_pixels=high))


def info(processor: Processor, size: tuple[int, int]) -> ImageInfo:
    text = processor.render([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}])
    return processor.prepare(text, [Image.new("RGB", size, "red")]).images[0]


def test_a_phone_photo_at_three_limits(folders: dict[str, Path]) -> None:
    photo = (4000, 3000)
    assert info(load(folders["qwen2_vl"], high=200_000), photo).tokens <= 255
    assert info(load(folders["qwen2_vl"], high=1_003_520), photo).tokens == 1230
    assert info(load(folders["qwen2_vl"]), photo).tokens == 1230


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("high", [100_000, 200_000, 500_000])
def test_the_limit_counts_pixels_of_the_picture_once(name: str, high: int, folders: dict[str, Path]) -> None:
    # GLM's own bound counts both frames of a temporal patch: half as many tokens would come out.
    side = FAMILIES[name].patch
    patches = info(load(folders[name], high=high), (2000, 1500)).patches
    assert 0.8 * high < patches * side * side <= high


@pytest.mark.parametrize("name", NATIVE)
def test_the_lower_limit_enlarges(name: str, folders: dict[str, Path]) -> None:
    side = FAMILIES[name].patch
    patches = info(load(folders[name], low=300_000), (30, 20)).patches
    assert 300_000 <= patches * side * side < 400_000


@pytest.mark.parametrize("name", FAMILIES)
def test_a_small_limit_saves_patches_wherever_the_family_can(name: str, folders: dict[str, Path]) -> None:
    free = info(load(folders[name]), (300, 200))
    held = info(load(folders[name], high=3136), (300, 200))
    assert (held.width, held.height) == (300, 200)
    if name in ONE_SIZE:
        assert held == free
    else:
        assert held.patches < free.patches
        assert held.tokens < free.tokens or name == "mllama"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_roomy_limit_changes_nothing(name: str, folders: dict[str, Path]) -> None:
    roomy = load(folders[name], low=1, high=50_000_000)
    if name not in NATIVE:  # there the limit replaces the model's own, and may allow more
        assert info(roomy, (300, 200)) == info(load(folders[name]), (300, 200))


def test_gemma4_gets_the_soft_tokens_that_fit(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gemma4", "gemma4")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "max_soft_tokens": 280}))
    cell = 48 * 48
    assert info(load(folder), (600, 600)).tokens == 256
    assert info(load(folder, high=140 * cell), (600, 600)).tokens == 121
    assert info(load(folder, high=279 * cell), (600, 600)).tokens == 121
    assert info(load(folder, high=280 * cell), (600, 600)).tokens == 256
    assert info(load(folder, high=1), (600, 600)).tokens == 64


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_what_the_limits_do(name: str, folders: dict[str, Path]) -> None:
    free, held = load(folders[name]).limits(), load(folders[name], high=3136).limits()
    assert free.endswith(".")
    assert "pixels" in free or "tiles" in free or "limits" in free
    if name in NATIVE:
        assert "3136" in held


def test_fitting_keeps_the_ratio_and_leaves_others_alone() -> None:
    limiter = Limiter(object(), ImageConfig(min_pixels=5000, max_pixels=20_000))
    for size, wanted in (((400, 200), (200, 100)), ((50, 25), (100, 50)), ((1000, 1), (1000, 1))):
        fitted = limiter.fit(Image.new("RGB", size)) if size != (1000, 1) else Image.new("RGB", size)
        assert fitted.size == wanted
    same = Image.new("RGB", (100, 100))
    assert limiter.fit(same) is same
    assert limiter.fit(Image.new("RGB", (100_000, 3))).height == 1


def asked(processor: Processor, sizes: list[tuple[int, int]], *limits: PixelLimits) -> Prepared:
    slots = [{"type": "image"}] * len(sizes)
    text = processor.render([{"role": "user", "content": [*slots, {"type": "text", "text": "?"}]}])
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
    return processor.prepare(text, pictures, {}, limits)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("wanted", [PixelLimits(max_pixels=3136), PixelLimits(min_pixels=90_000)], ids=str)
def test_a_picture_may_ask_for_what_the_flag_gives_all(
    name: str, wanted: PixelLimits, folders: dict[str, Path]
) -> None:
    plain = load(folders[name])
    before = asked(plain, [(300, 200)])
    if name in ONE_SIZE or (wanted.min_pixels and name in NEVER_ENLARGED):
        with pytest.raises(OptionError, match="would change nothing"):
            asked(plain, [(300, 200)], wanted)
    else:
        found = asked(plain, [(300, 200)], wanted)
        same = asked(load(folders[name], wanted.min_pixels, wanted.max_pixels), [(300, 200)])
        assert found.images == same.images
        assert all(torch.equal(value, same.inputs[key]) for key, value in found.inputs.items())
    after = asked(plain, [(300, 200)])
    assert all(torch.equal(value, after.inputs[key]) for key, value in before.inputs.items())


@pytest.mark.parametrize("name", NATIVE)
def test_a_picture_never_gets_more_than_the_flag_allows(name: str, folders: dict[str, Path]) -> None:
    held = load(folders[name], high=100_000)
    usual = asked(held, [(800, 600)])
    assert asked(held, [(800, 600)], PixelLimits(max_pixels=400_000)).images == usual.images
    with pytest.raises(OptionError, match="may have 100000 pixels at most"):
        asked(held, [(800, 600)], PixelLimits(min_pixels=200_000))


@pytest.mark.parametrize("name", ["qwen2_vl", "smolvlm"])
def test_pictures_with_limits_of_their_own(name: str, folders: dict[str, Path]) -> None:
    plain, wanted = load(folders[name]), (PixelLimits(max_pixels=30_000), PixelLimits())
    if name != "qwen2_vl":
        with pytest.raises(OptionError, match="must have the same"):
            asked(plain, [(300, 200), (300, 200)], *wanted)
        return
    mixed = asked(plain, [(300, 200), (300, 200)], *wanted)
    single = [asked(plain, [(300, 200)], limit).images[0] for limit in wanted]
    assert list(mixed.images) == single
    assert single[0].tokens < single[1].tokens
