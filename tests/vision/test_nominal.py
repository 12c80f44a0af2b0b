"""What pictures become when only a config is there, and that config says something else than it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from whole_folders import make_whole

from mmswap.blueprint import Blueprint
from mmswap.sizing.scales import Scale
from mmswap.swap.dry_run import DryRun
from mmswap.vision.tower import run_tower

TINY = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def blueprint(path: Path, values: dict[str, Any]) -> Blueprint:
    (path / "config.json").write_text(json.dumps(values))
    return Blueprint.of(path / "config.json")


def test_frames_that_a_config_copied_from_another_family_do_not_make_the_dry_run_fail(tmp_path: Path) -> None:
    """PaddleOCR-VL's config says two frames, and its tower sees one: the peak was taken as 300 MiB."""
    vision = {**TINY, "model_type": "paddleocr_vl", "patch_size": 14, "image_size": 384, "temporal_patch_size": 2}
    model = blueprint(
        tmp_path,
        {
            **TINY,
            "model_type": "paddleocr_vl",
            "num_key_value_heads": 1,
            "head_dim": 32,
            "vocab_size": 103424,
            "rope_scaling": {"mrope_section": [4, 6, 6], "rope_type": "default"},
            "vision_config": vision,
        },
    )
    peak = DryRun(model.model).tower_peak(run_tower, model.picture(700, 420).call)
    assert peak.how == "trace"


@pytest.mark.parametrize(("size", "tokens"), [((150, 110), 42), ((7, 40), 3), ((90, 130), 35)])
def test_mistrals_pictures_are_cut_into_whole_cells_of_several_patches(
    size: tuple[int, int], tokens: int, tmp_path: Path
) -> None:
    """150x110 had 154 patches and 35 tokens by a plan, 168 and 42 at run time, and 7x40 was refused."""
    folder = make_whole(tmp_path / "m", "mistral3")
    stored, alone = (Blueprint.of(place).picture(*size) for place in (folder, _alone(folder, tmp_path)))
    assert (stored.patches, stored.tokens) == (4 * tokens, tokens)
    assert alone.patches == 4 * alone.tokens


def _alone(folder: Path, path: Path) -> Path:
    alone = path / "alone" / "config.json"
    alone.parent.mkdir()
    alone.write_bytes((folder / "config.json").read_bytes())
    return alone


def test_llama4_counts_the_patches_of_all_its_tiles(tmp_path: Path) -> None:
    """They were those of one tile, whatever the picture, and every limit of a plan was laid through that."""
    model = blueprint(
        tmp_path,
        {
            "model_type": "llama4",
            "image_token_index": 5,
            "dtype": "bfloat16",
            "text_config": {**TINY, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size_mlp": 64,
                            "vocab_size": 64, "num_local_experts": 2, "num_experts_per_tok": 1},
            "vision_config": {**TINY, "image_size": 336, "patch_size": 14, "projector_input_dim": 64,
                              "projector_output_dim": 64, "vision_output_dim": 64, "intermediate_size": 256},
        },
    )  # fmt: skip
    one, many, both = model.picture(336, 336), model.picture(1344, 1344), model.picture(1344, 1344, 2)
    assert (one.patches, many.patches, both.patches) == (576, 17 * 576, 34 * 576)
    assert many.tokens == 17 * 144


def test_the_splitting_that_published_idefics2_checkpoints_ask_for_is_counted(tmp_path: Path) -> None:
    model = blueprint(
        tmp_path,
        {
            "model_type": "idefics2",
            "text_config": {**TINY, "model_type": "mistral", "num_key_value_heads": 1, "vocab_size": 64},
            "perceiver_config": {"hidden_size": 64, "resampler_n_heads": 2, "resampler_head_dim": 32,
                                 "num_key_value_heads": 1, "resampler_depth": 1},
            "vision_config": {**TINY, "model_type": "idefics2", "image_size": 980, "patch_size": 14},
        },
    )  # fmt: skip
    assert model.picture(980, 980).tokens == 5 * 64  # four quarters and the whole


@pytest.mark.parametrize("ratio", [(20, 4000), (4000, 20), (3, 599), (1344, 1008)])
def test_no_size_that_a_search_asks_for_is_narrower_than_the_picture_asked_about(ratio: tuple[int, int]) -> None:
    """20x4000 became 707x141422, which is beyond the ratio of 200 that Qwen's processor allows: the plan failed."""
    scale = Scale(*ratio)
    assert scale.size(scale.edge) == ratio
    for edge in (1, 7, 64, 333, 4001, 141_422):
        width, height = scale.size(edge)
        assert max(width, height) == edge
        assert max(width, height) * min(ratio) <= min(width, height) * max(ratio)
