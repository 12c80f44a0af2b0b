"""Faults that plans of models and options outside of all tables had; each test is named for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import pytest

from mmswap import profiles
from mmswap.blueprint import Blueprint
from mmswap.card.known import known_card
from mmswap.cli.plan_page import headline
from mmswap.errors import ModelError, OptionError
from mmswap.runtime import carried_model
from mmswap.sizing import Wish, room_of, size_up
from mmswap.sizing.memory import remembered
from mmswap.sizing.planner import Planner
from mmswap.sizing.traced import traced
from mmswap.swap.intercept import intercepted


def test_what_cross_attention_looks_at_does_not_grow_with_the_context() -> None:
    """Llama 3.2 Vision was said to miss 1.1 GiB on a card of 24 GiB: a picture's states counted for every 65 tokens."""
    blueprint = Blueprint("mllama", families.shared("mllama").config)
    prompt = Planner(blueprint, room_of("sim:1GiB"), Wish(150, 110, context=512)).prompt
    given = prompt.given
    assert given.seen > 0
    words = (given.words + given.masks) // given.tokens
    assert prompt.held(2048) - prompt.held(1024) == pytest.approx(1024 * words, abs=2048)


def test_pictures_that_fill_the_context_that_nobody_asked_for_get_a_longer_one() -> None:
    """8000x6000 was refused for the 8192 tokens of a default, by a model that reads 128000."""
    blueprint = Blueprint.of("qwen2.5-vl-3b")
    tokens = blueprint.picture(3000, 3000).tokens
    planner = Planner(blueprint, room_of("sim:32GiB"), Wish(3000, 3000))
    assert tokens > 8192
    assert tokens + 1024 <= planner.context <= tokens + 2048


def test_a_checkpoint_that_is_quantised_already_is_not_counted_in_full_without_a_word() -> None:
    config = families.shared("llava").config.__class__.from_dict(families.shared("llava").config.to_dict())
    config.quantization_config = {"quant_method": "awq", "bits": 4}
    said = " ".join(size_up(Blueprint("llava", config), room_of("sim:1GiB"), Wish(64, 64, context=64)).reasons)
    assert "quantised already (awq, 4 bits)" in said


@pytest.mark.parametrize("images", [0, -1, 1001, 10**9])
def test_a_number_of_pictures_that_no_prompt_has_is_refused_at_once(images: int) -> None:
    with pytest.raises(OptionError, match="--images must be 1 to 1000"):
        Wish(images=images)


@pytest.mark.parametrize("name", ["Q" * 5000, "~nobody-of-that-name/model"])
def test_a_name_that_no_file_system_takes_is_one_sentence(name: str) -> None:
    with pytest.raises(ModelError) as told:
        Blueprint.of(name)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("Tesla T4", "Tesla T4"),
        ("GeForce® RTX™ 4090", "RTX 4090"),
        ("AMD Radeon(TM) RX 7900 XT", "RX 7900 XT"),
        ("RX７９００XT", "RX 7900 XT"),
    ],
)
def test_cards_by_the_names_that_drivers_and_torch_give_them(typed: str, name: str) -> None:
    assert known_card(typed).name == name


def test_what_a_real_card_would_reserve_leaves_out_the_hosts_kernels() -> None:
    """Cohere2 Vision was said to take 52 GiB of a real card: what a matrix product takes on the CPU was in it."""
    blueprint: Any = Blueprint.of(carried_model())
    planner = Planner(blueprint, room_of("sim:1GiB"), Wish(384, 320, context=1024))
    sizing = size_up(blueprint, room_of("sim:1GiB"), Wish(384, 320, context=1024))
    assert sizing.encoding.reserved == planner.cost.peak.lasting().reserved()


@pytest.mark.parametrize("family", ["qwen2_vl", "glm4v", "qwen3_vl"])
def test_what_the_decoder_is_given_is_counted_for_several_pictures_too(family: str) -> None:
    """Pictures that touched were not understood by the model's own code, and their embeddings counted for nothing."""
    blueprint = Blueprint(family, families.shared(family).config)
    one, two = (
        Planner(blueprint, room_of("sim:1GiB"), Wish(112, 112, images=images, context=512)).prompt for images in (1, 2)
    )
    assert 0 < one.given.words < two.given.words
    assert one.given.tokens < two.given.tokens


def test_several_pictures_do_not_look_at_each_other() -> None:
    """Gemma 3 was said to read 8 pictures of 256 tokens in one step of 2048, where 256 do."""
    blueprint = Blueprint("gemma3", families.shared("gemma3").config)
    tokens = blueprint.picture(200, 150).tokens
    prompt = Planner(blueprint, room_of("sim:1GiB"), Wish(200, 150, images=70, context=512)).prompt
    assert prompt.largest(512, 1) == tokens
    assert prompt.largest(512, tokens + 20) == tokens + 20


def test_the_largest_picture_counts_colours_and_no_masks() -> None:
    """SmolVLM was said to see 2725x2725 of a picture: the bytes of its masks were taken for colours of its 17 tiles."""
    room = room_of("RX 7900 XT")
    limits = size_up(remembered("smolvlm-256m", room), room, Wish()).limits
    assert limits.image == limits.image_with_window == (2111, 2111)
    assert abs(2111**2 - 17 * 512**2) < 2111  # all of the tiles, and hardly more


def test_a_way_to_the_decoder_that_is_not_understood_is_said_and_not_counted_as_nothing() -> None:
    """A model whose own code raised on the way was planned without its embeddings, kept as if it were sure."""
    blueprint = Blueprint("qwen2_vl", families.shared("qwen2_vl").config)
    room, wish = room_of("sim:1GiB"), Wish(112, 112, context=512)

    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a part of it wants numbers")

    with intercepted(blueprint.twin.model, "get_placeholder_mask", breaks):
        facts = traced(blueprint, room)
        planner = Planner(facts, room, wish)
    given, hidden = planner.prompt.given, blueprint.config.get_text_config().hidden_size
    assert given.words == given.tokens * hidden * blueprint.dtype.itemsize
    assert not facts.sure
    assert any("a part of it wants numbers" in sentence for sentence in size_up(facts, room, wish).reasons)


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("vision_config", {"num_heads": 15}, "the encoder's peak is taken as"),
        ("vision_config", {"out_hidden_size": 1024}, "Image features and image tokens do not match"),
    ],
)
def test_a_plan_of_a_model_that_cannot_run_does_not_say_without_a_word_that_it_fits(
    part: str, change: dict[str, int], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((Path(profiles.__file__).parent / "qwen2.5-vl-3b.json").read_text("utf-8"))["config"]
    config[part] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    room = room_of("RX 7900 XT")
    sizing = size_up(remembered(str(tmp_path), room), room, Wish(336, 336, context=4096))
    assert why in headline(sizing)
    assert why in sizing.to_json()["doubt"]
    assert len(caplog.records) <= 1


def test_what_a_config_class_says_of_a_wrong_value_is_told(tmp_path: Path) -> None:
    """It was `Validation error for field 'hidden_size'.` and no more."""
    config = json.loads((Path(profiles.__file__).parent / "qwen2.5-vl-3b.json").read_text("utf-8"))["config"]
    config["text_config"]["hidden_size"] = "big"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="expected int, got str"):
        Blueprint.of(tmp_path)
