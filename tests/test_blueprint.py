"""A blueprint is the model that the checkpoint would be: same tower, same calls, same peaks, and no bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import huggingface_hub.constants
import pytest
import torch
from families import IMAGE

from mmswap import profiles
from mmswap.blueprint import Blueprint, Picture
from mmswap.errors import ModelError, OptionError, PartsNotFound
from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import DryRun
from mmswap.swap.peak import Peak
from mmswap.vision.tower import Call, find_tower

SOME = [
    "qwen2_vl",
    "qwen2_5_vl",
    "gemma3",
    "idefics3",
    "llava",
    "llava_next",
    "mistral3",
    "mllama",
    "internvl",
    "blip_2",
]


def run_tower(model: Any, call: Call) -> Any:
    return find_tower(model).run(call)


def peak_of(model: Any, picture: Picture) -> Peak:
    peak = DryRun(model).tower_peak(run_tower, picture.call)
    assert peak.how == "trace"
    return peak


def folder_of(path: Path, name: str, **more: Any) -> Path:
    families.shared(name).config.save_pretrained(path)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    return path


@pytest.mark.parametrize("name", SOME)
def test_a_picture_costs_what_it_costs_the_real_model(name: str, tmp_path: Path) -> None:
    blueprint = Blueprint.of(folder_of(tmp_path, name, dtype="float32"))
    picture = blueprint.picture(160, 120)
    drawn = picture.call.mapped(lambda tensor: torch.rand(tensor.shape) if tensor.is_meta else tensor)
    live = peak_of(families.shared(name), Picture(drawn, 0, 0, {})).live
    assert peak_of(blueprint.model, picture).live == live
    find_tower(families.shared(name)).run(drawn)  # and it is a call that the real model takes


@pytest.mark.parametrize("name", [name for name in SOME if name not in ("mllama", "blip_2")])
def test_tokens_are_the_rows_of_the_features(name: str, tmp_path: Path) -> None:
    """Where they are told without a look at the features (grids), they agree with the features too."""
    blueprint = Blueprint.of(folder_of(tmp_path, name))
    for images in (1, 2):
        picture = blueprint.picture(200, 90, images)
        features = peak_of(blueprint.model, picture).result.pooler_output
        rows = [features] if isinstance(features, torch.Tensor) else features
        assert picture.tokens == sum(row.shape[:-1].numel() for row in rows)
        assert picture.inputs["input_ids"].tolist() == [[IMAGE] * picture.tokens]


def test_tokens_of_models_that_merge_in_their_own_way(tmp_path: Path) -> None:
    assert Blueprint.of(folder_of(tmp_path / "a", "mllama")).picture(90, 90, 2).tokens == 2
    assert Blueprint.of(folder_of(tmp_path / "b", "blip_2")).picture(90, 90).tokens == 6  # num_query_tokens


@pytest.mark.parametrize("name", SOME)
def test_patches_alone_are_those_of_the_picture(name: str, tmp_path: Path) -> None:
    blueprint = Blueprint.of(folder_of(tmp_path, name))
    for size in ((200, 90, 1), (64, 128, 2)):
        assert blueprint.patches(*size) == blueprint.picture(*size).patches


def test_patches_need_no_look_at_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search asks for dozens of sizes, and some towers go window by window."""
    blueprint = Blueprint.of(folder_of(tmp_path, "mistral3"))
    seen = blueprint.picture(320, 240).patches
    monkeypatch.setattr(Blueprint, "_asked", None)
    assert blueprint.patches(320, 240) == seen > blueprint.patches(80, 60)
    with pytest.raises(OptionError, match="0x40"):
        blueprint.patches(0, 40)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_short_twin_has_the_model_s_parts(name: str, tmp_path: Path) -> None:
    """The same names and as many layers, all of them one: what is asked on the way to the decoder finds the same."""
    blueprint = Blueprint.of(folder_of(tmp_path, name))
    parts, twin = blueprint.parts, find_parts(blueprint.twin)
    layers = [layer for _, layer in twin.layers]
    assert (twin.decoder_name, len(layers), len(set(layers))) == (parts.decoder_name, len(parts.layers), 1)
    assert [name for name, _ in find_tower(blueprint.twin).modules] == [name for name, _ in blueprint.tower.modules]
    assert len({layer for _, layer in parts.layers}) == len(parts.layers)


def test_nothing_is_allocated_for_weights_or_pixels(tmp_path: Path) -> None:
    blueprint = Blueprint.of(folder_of(tmp_path, "qwen2_vl", dtype="bfloat16"))
    picture = blueprint.picture(8000, 6000)
    assert all(weight.is_meta and weight.dtype == torch.bfloat16 for weight in blueprint.model.parameters())
    pixels, grid = picture.inputs["pixel_values"], picture.inputs["image_grid_thw"]
    assert pixels.is_meta
    assert picture.patches == pixels.shape[0] == int(grid.prod())
    assert picture.tokens == picture.patches // 4


def test_a_folder_s_own_image_processor_is_used(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    free = Blueprint.of(folder).picture(2000, 1500).patches
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 8}
    sizes = {"size": {"shortest_edge": 64, "longest_edge": 160 * 160}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | sizes))
    assert Blueprint.of(folder).picture(2000, 1500).patches <= 400 < free
    assert Blueprint.of(folder / "config.json").picture(2000, 1500).patches <= 400


def test_a_damaged_image_processor_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match="preprocessor_config"):
        Blueprint.of(folder).picture(64, 64)


def test_dtype_is_that_of_the_config_or_of_the_caller(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "llava", dtype="float16")
    assert Blueprint.of(folder).dtype == torch.float16
    blueprint = Blueprint.of(folder, dtype=torch.bfloat16)
    assert {weight.dtype for weight in blueprint.model.parameters()} == {torch.bfloat16}


def test_a_family_without_sdpa_is_built_with_eager(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "got_ocr2")
    assert Blueprint.of(folder).attention == "eager"
    assert Blueprint.of(folder_of(tmp_path / "llava", "llava")).attention == "sdpa"


def test_attention_changes_the_peak(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "qwen2_vl")
    sdpa, eager = (Blueprint.of(folder, attention=kind) for kind in ("sdpa", "eager"))
    assert peak_of(eager.model, eager.picture(300, 300)).live > peak_of(sdpa.model, sdpa.picture(300, 300)).live


def test_a_config_file_under_any_name_and_a_profile_s_json_will_do(tmp_path: Path) -> None:
    values = json.loads((folder_of(tmp_path, "gemma3") / "config.json").read_text())
    for name, content in (("mine.json", values), ("profile.json", {"name": "mine", "config": values})):
        (tmp_path / name).write_text(json.dumps(content))
        assert Blueprint.of(tmp_path / name).tower.modules[0][0] == "model.vision_tower"


def test_a_shipped_profile_is_a_blueprint() -> None:
    name = next(name for name in profiles.names() if "gemma" in name)
    blueprint = Blueprint.of(name)
    assert blueprint.name == name
    assert blueprint.picture(896, 896).tokens == 256


def test_a_hub_id_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    folder_of(snapshot, "llava")
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    blueprint = Blueprint.of("org/tiny")
    assert (blueprint.name, blueprint.folder) == ("org/tiny", snapshot)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "config.json is not JSON"),
        ("[1]", "does not hold a JSON object"),
        ("\xff", "config.json is not JSON"),
        ('{"hidden_size": 4}', "names no model_type"),
        ('{"model_type": "qwen9_vl"}', "does not know the model type 'qwen9_vl': a newer one may"),
        ('{"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}', "trust-remote-code"),
        ('{"model_type": "llama"}', "is a llama model without a vision tower"),
        ('{"model_type": "llava", "text_config": {"hidden_size": "wide"}}', "not that of a llava model"),
        ('{"model_type": "llava", "text_config": {"model_type": "nonsense"}}', "llava model"),
        ('{"model_type": "gemma3", "vision_config": {"num_attention_heads": 7}}', "No gemma3 model can be built"),
    ],
)
def test_a_config_that_is_of_no_use_is_one_sentence(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=said) as caught:
        Blueprint.of(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["no/such-model", "nowhere", "/no/such/folder", "", "a b c", "../up"])
def test_what_is_nowhere_is_one_sentence(source: str) -> None:
    with pytest.raises(ModelError, match="There is no folder or file"):
        Blueprint.of(source)


def test_a_name_that_is_nearly_right_is_helped() -> None:
    right = profiles.names()[0]
    with pytest.raises(ModelError, match=f"did you mean .*{right}"):
        Blueprint.of(right[:-1])


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        Blueprint.of(tmp_path)


def test_pictures_that_cannot_be_are_refused(tmp_path: Path) -> None:
    blueprint = Blueprint.of(folder_of(tmp_path, "qwen2_vl"))
    with pytest.raises(OptionError, match="0x40"):
        blueprint.picture(0, 40)
    with pytest.raises(ModelError, match="cannot be shown a picture of 9000x4"):
        blueprint.picture(9000, 4)


def test_parts_that_are_missing_are_named_when_asked_for() -> None:
    from transformers import Mistral4Config

    small = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 64}
    blueprint = Blueprint("text alone", Mistral4Config(**small))
    assert blueprint.parts.layers
    with pytest.raises(PartsNotFound, match="no vision tower"):
        _ = blueprint.tower
