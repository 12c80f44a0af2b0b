"""Profiles of tiny models: the same every time, true to a real run, and found again by what is loaded later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from family_configs import CONFIGS

import mmswap
from mmswap.blueprint import Blueprint
from mmswap.card import HostCard, SimulatedCard
from mmswap.errors import ModelError
from mmswap.profiling import BY_RULES, SIZES, measurer, profile_of
from mmswap.recall import experience_of, name_of
from mmswap.runtime import carried_model
from mmswap.swap.meter import CpuMeter
from mmswap.swap.profile import Profile, keep
from mmswap.swap.replay import ARENA

SMALL = ((56, 56), (112, 112), (168, 112), (224, 224))
Make = Callable[[str], Path]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def config_of(tmp_path: Path) -> Make:
    """A config.json of a tiny model of a family, and nothing else."""

    def make(name: str) -> Path:
        config_class, values = CONFIGS[name]
        config = getattr(transformers, config_class)(**values(4, 64))
        (tmp_path / name).mkdir()
        place = tmp_path / name / "config.json"
        place.write_text(json.dumps(config.to_dict(), default=str))
        return place

    return make


def test_a_profile_is_the_same_every_time_and_needs_no_measurement(
    config_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> int:
        raise AssertionError("a kernel was measured")

    monkeypatch.setattr(CpuMeter, "scratch", never)
    place = config_of("qwen2_5_vl")
    first = profile_of(Blueprint.of(place, dtype=torch.bfloat16), sizes=SMALL)
    torch.set_default_dtype(torch.float64)
    try:
        again = profile_of(Blueprint.of(place, dtype=torch.bfloat16), sizes=SMALL)
    finally:
        torch.set_default_dtype(torch.float32)
    assert json.dumps(first.to_json()) == json.dumps(again.to_json())
    assert Profile.of_json(json.loads(json.dumps(first.to_json()))) == first
    assert (first.card, first.scratch, first.dtype) == (BY_RULES, {}, "bfloat16")


def test_a_tower_of_any_size_grows_with_its_patches(config_of: Make) -> None:
    found = profile_of(Blueprint.of(config_of("qwen2_5_vl"), dtype=torch.bfloat16), sizes=SMALL)
    assert [one.images for one in found.samples] == [1] * 4
    assert len({one.patches for one in found.samples}) == 4
    for one in found.samples:
        assert one.output < one.live <= one.with_scratch <= one.least_free <= one.reserved
        assert found.tower.at(one.patches) == pytest.approx(one.live, rel=found.tower.residual + 1e-3)
    assert found.tower.linear
    assert sum(found.weights.values()) == sum(
        parameter.numel() * 2 for parameter in Blueprint.of(folder_of(found), dtype=torch.bfloat16).model.parameters()
    )
    assert [one.tokens for one in found.prefill] == [min_max(found)[0], min_max(found)[1]]
    for step in found.prefill:
        assert 0 < step.kv_bytes < step.live <= step.reserved


def folder_of(found: Profile) -> Path:
    return Path(found.name)


def min_max(found: Profile) -> tuple[int, int]:
    tokens = [one.tokens for one in found.samples]
    return min(tokens), max(tokens)


def test_eager_attention_shows_as_a_square_term(config_of: Make) -> None:
    place = config_of("qwen2_vl")
    sizes = ((224, 224), (448, 448), (560, 560), (672, 672))
    fused = profile_of(Blueprint.of(place), sizes=sizes)
    eager = profile_of(Blueprint.of(place, attention="eager"), sizes=sizes)
    assert fused.tower.linear
    assert not eager.tower.linear
    assert eager.fingerprint != fused.fingerprint


def test_a_tower_of_one_size_is_sampled_with_several_pictures(config_of: Make) -> None:
    found = profile_of(Blueprint.of(config_of("gemma3")), sizes=((56, 56), (900, 600)))
    assert [one.images for one in found.samples] == [1, 1, 2, 3, 4]
    assert [one.patches for one in found.samples][1:] == [n * found.samples[0].patches for n in (1, 2, 3, 4)]
    assert found.tower.residual < 0.05
    assert [one.tokens for one in found.prefill] == [found.samples[1].tokens, found.samples[2].tokens]


def test_a_trace_is_true_to_a_real_run_of_the_same_call() -> None:
    blueprint = Blueprint.of(carried_model())
    run = measurer(blueprint, HostCard())
    found = profile_of(blueprint, sizes=((64, 64), (128, 96), (200, 200)), policy=ARENA, measured=run, card="here")
    for one in found.samples:
        assert one.measured == one.live
    assert found.how == "traced, and measured by real runs"
    assert found.scratch["ops"]


def test_a_config_alone_cannot_be_measured(config_of: Make) -> None:
    blueprint = Blueprint.of(config_of("gemma3"))
    with pytest.raises(ModelError):
        measurer(blueprint, HostCard())


def test_what_is_profiled_for_a_card_is_found_by_a_model_that_is_loaded_on_it() -> None:
    runtime = mmswap.load(card="sim:1GiB")
    card = SimulatedCard("sim:2GiB")
    assert experience_of(runtime.model, card).profile is None
    blueprint = Blueprint.of(carried_model(), dtype=runtime.model.dtype)
    found = profile_of(blueprint, sizes=((64, 64), (128, 96)), policy=ARENA, card=name_of(card))
    assert keep(found) is not None
    assert experience_of(runtime.model, card).profile == found
    eager = Blueprint.of(carried_model(), dtype=runtime.model.dtype, attention="eager")
    assert experience_of(eager.model, card).profile is None
    assert experience_of(runtime.model, HostCard()).profile is None


def test_four_sizes_are_traced_unless_others_are_asked_for() -> None:
    assert len(SIZES) == 4
