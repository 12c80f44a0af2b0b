"""The shipped profiles: their names, their models' sizes, and their figures computed anew.

Three are rebuilt whole and all others at one size, for time; `scripts/build-profiles.py --check` rebuilds them all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mmswap.profiles as profiles
from mmswap.blueprint import Blueprint
from mmswap.profiling import weights_of
from mmswap.swap import kernels
from mmswap.swap.dry_run import DryRun
from mmswap.swap.profile import Profile
from mmswap.swap.replay import TORCH
from mmswap.swap.scratch import ScratchTable
from mmswap.vision.tower import find_tower

ROOT = Path(__file__).parents[1]
WHOLE = ("qwen2.5-vl-7b", "internvl3-8b", "qwen2-vl-2b")
ASKED_FOR = ("qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen3-vl-4b", "qwen3-vl-8b", "gemma-3-4b", "gemma-3-12b")
ASKED_FOR += ("smolvlm-256m", "smolvlm-2.2b", "llava-onevision-7b", "internvl3-8b", "mistral-small-3.1-24b")
ASKED_FOR += ("pixtral-12b",)


@cache
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_profiles", ROOT / "scripts" / "build-profiles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def blueprint(name: str) -> Blueprint:
    return Blueprint.of(name)


def same_versions(stored: dict[str, Any]) -> None:
    here = {"torch": torch.__version__.partition("+")[0], "transformers": importlib.metadata.version("transformers")}
    if stored["versions"] != here:
        pytest.skip(f"the figures are of {stored['versions']}, and here is {here}")


def test_every_file_is_listed_and_all_that_were_asked_for_are_there() -> None:
    files = sorted(path.stem for path in (ROOT / "profiles").glob("*.json"))
    assert list(profiles.names()) == files
    assert len(files) >= 16
    assert set(ASKED_FOR) <= set(files)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"),
        ("QWEN2.5-VL-7B", "qwen2.5-vl-7b"),
        ("qwen2.5_vl 7b", "qwen2.5-vl-7b"),
        ("google/gemma-3-4b-it", "gemma-3-4b"),
        ("HuggingFaceTB/SmolVLM-Instruct", "smolvlm-2.2b"),
        ("zai-org/GLM-4.1V-9B-Thinking", "glm-4.1v-9b"),
    ],
)
def test_a_profile_is_found_by_its_name_and_by_its_hub_id_in_any_case(asked: str, found: str) -> None:
    assert profiles.read(asked)["name"] == found


def test_a_name_that_is_not_there_comes_back_with_near_ones() -> None:
    with pytest.raises(profiles.UnknownProfile) as caught:
        profiles.read("Qwen2.5-VL-8B")
    assert caught.value.name == "Qwen2.5-VL-8B"
    assert "qwen2.5-vl-7b" in caught.value.near
    assert set(caught.value.near) <= set(profiles.names())
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("asked", ["", "/", "../pyproject", "__init__", "zzzzzz", "Qwen/"])
def test_a_name_that_is_like_none_of_them_is_refused(asked: str) -> None:
    with pytest.raises(profiles.UnknownProfile):
        profiles.read(asked)


def test_what_is_read_is_the_callers_own() -> None:
    profiles.read("gemma-3-4b")["config"].clear()
    assert profiles.read("gemma-3-4b")["config"]


def test_every_hub_id_leads_to_the_profile_that_lists_it() -> None:
    for name in profiles.names():
        for hub in profiles.read(name)["hub"]:
            assert profiles.read(hub)["name"] == name
            assert profiles.read(hub.rpartition("/")[2].upper())["name"] == name


@pytest.mark.parametrize("name", profiles.names())
def test_the_model_has_as_many_parameters_as_was_published(name: str) -> None:
    stored = profiles.read(name)
    counted = sum(parameter.numel() for parameter in blueprint(name).model.parameters())
    assert counted == pytest.approx(stored["parameters"], rel=0.005)
    assert sum(weights_of(blueprint(name)).values()) == 2 * counted  # all 16 bit, each byte in one group


@pytest.mark.parametrize("name", profiles.names())
def test_a_file_is_a_profile_and_says_where_it_comes_from(name: str) -> None:
    stored = profiles.read(name)
    profile = Profile.of_json(stored)
    assert profile.name == name
    assert profile.attention == "sdpa"
    assert profile.dtype in ("bfloat16", "float16")
    assert stored["source"]["config"]
    assert stored["source"]["parameters"]
    assert all(sample.live <= sample.least_free <= sample.reserved for sample in profile.samples)
    for s in profile.samples:
        assert abs(profile.tower.at(s.patches) - s.live) <= profile.tower.residual * s.live + 1  # rounded up
    assert (ROOT / "profiles" / f"{name}.json").read_text("utf-8") == script().text_of(stored)


@pytest.mark.parametrize("name", WHOLE)
def test_a_rebuilt_profile_is_the_shipped_one(name: str) -> None:
    stored = profiles.read(name)
    same_versions(stored)
    assert list(script().different(script().rebuilt(name), stored)) == []


@pytest.mark.parametrize("name", [name for name in profiles.names() if name not in WHOLE])
def test_one_size_of_a_profile_is_as_shipped(name: str) -> None:
    stored = profiles.read(name)
    same_versions(stored)
    kept = [sample for sample in stored["samples"] if sample["images"] == 1][-1]
    picture = blueprint(name).picture(kept["width"], kept["height"])
    dry_run = DryRun(blueprint(name).model, policy=TORCH, scratch=ScratchTable(None, rules=kernels.on_a_card))
    peak = dry_run.tower_peak(lambda model, call: find_tower(model).run(call), picture.call)
    found = {"patches": picture.patches, "tokens": picture.tokens, "live": peak.live, "reserved": peak.total}
    found |= {"output": peak.output, "with_scratch": peak.with_scratch, "least_free": peak.least_free(TORCH)}
    assert found == {key: kept[key] for key in found}


@pytest.mark.parametrize(
    ("name", "side", "counted"),
    [
        ("qwen2.5-vl-7b", 224, 11_911_728),
        ("qwen2.5-vl-7b", 448, 47_646_832),
        ("qwen2.5-vl-7b", 896, 190_587_216),
        ("gemma-3-4b", 896, 108_265_472),
        ("mistral-small-3.1-24b", 224, 9_113_856),
        ("mistral-small-3.1-24b", 448, 38_027_776),
        ("mistral-small-3.1-24b", 896, 177_275_904),
        ("glm-4.1v-9b", 224, 14_237_708),
        ("glm-4.1v-9b", 448, 56_950_796),
        ("glm-4.1v-9b", 896, 227_803_148),
    ],
)
def test_live_bytes_are_what_malloc_counted_in_a_real_run_of_that_tower(name: str, side: int, counted: int) -> None:
    """Real runs in bf16 at real widths, depth cut to two blocks (the peak does not depend on it), before mmswap was."""
    samples = {sample["width"]: sample for sample in profiles.read(name)["samples"] if sample["images"] == 1}
    assert samples[side]["live"] == counted


def test_a_picture_of_nine_tiles_and_its_thumbnail_is_counted_as_ten_tiles() -> None:
    """InternVL3: 28493824 bytes a tile were counted by malloc in a real run."""
    largest = [sample for sample in profiles.read("internvl3-8b")["samples"] if sample["images"] == 1][-1]
    assert (largest["width"], largest["patches"], largest["live"]) == (1344, 10 * 1024, 284_938_240)
