"""Corrections end to end: a tower that needs more than was predicted, on a card that is tight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import mmswap
from mmswap.config import SwapConfig
from mmswap.recall import experience_of
from mmswap.runtime import Runtime
from mmswap.swap.experience import RUNS, Experience
from mmswap.swap.fit import Fit
from mmswap.swap.peak import Peak
from mmswap.swap.profile import Profile, Sample
from mmswap.units import KIB
from mmswap.vision.encoder import Encoder, Job
from mmswap.vision.tower import Call

MORE = 300 * KIB
ASKED = "is added"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return mmswap.load(card="sim:1GiB", mmproj_swap_layers=-1)


def encoder_of(runtime: Runtime, swap: SwapConfig | None = None) -> Encoder:
    """A fresh encoder, as a new process would make it."""
    experience = experience_of(runtime.model, runtime.card)
    pool, settings = runtime.encoder.pool, swap or runtime.config.swap
    return Encoder(runtime.encoder.tower, runtime._dry_run, runtime.card, pool, settings, experience)


def encoded(runtime: Runtime, encoder: Encoder, size: tuple[int, int] = (120, 90)) -> tuple[Any, list[str]]:
    """The report, and what was said."""
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((30, 20, 80, 70), fill="red")
    content = [{"type": "image", "image": image}, {"type": "text", "text": "What is this?"}]
    prompt = runtime.render([{"role": "user", "content": content}])
    said: list[str] = []
    job = encoder.begin(runtime.prepare(prompt).inputs, said.append)
    done = encoder.encode(job, lambda: runtime.singles(prompt), said.append)
    encoder.settle()
    return done.report(), said


@contextmanager
def greedy(runtime: Runtime) -> Iterator[None]:
    """Inside the block the real tower takes more than its code lets a trace see."""

    def take(*_: Any) -> None:
        torch.empty(MORE + HONEST["peak"], dtype=torch.uint8)

    hook = runtime.encoder.tower.modules[0][1].register_forward_pre_hook(take)
    try:
        yield
    finally:
        hook.remove()


HONEST: dict[str, int] = {}  # the peak of the usual picture, as long as nothing is hidden


@pytest.fixture(autouse=True)
def honest(runtime: Runtime, folder: Path) -> None:
    if not HONEST:
        HONEST["peak"] = encoded(runtime, encoder_of(runtime))[0].peak_measured
        for entry in folder.iterdir():
            entry.unlink()


def test_an_honest_tower_changes_no_plan(runtime: Runtime) -> None:
    first, said = encoded(runtime, encoder_of(runtime))
    assert any("the prediction held" in sentence for sentence in said)
    second, again = encoded(runtime, encoder_of(runtime))
    assert second.need == first.need
    assert not any("measured" in sentence or ASKED in sentence for sentence in again)


def test_a_tower_that_takes_more_is_given_more_from_the_second_run_on(runtime: Runtime) -> None:
    with greedy(runtime):
        first, said = encoded(runtime, encoder_of(runtime))
        assert any("later plans count with that" in sentence for sentence in said)
        second, told = encoded(runtime, encoder_of(runtime))  # another process
    more = first.peak_measured - HONEST["peak"]
    assert more >= MORE
    assert second.need - first.need == pytest.approx(1.05 * more, abs=2)
    assert any(ASKED in sentence for sentence in told)
    assert second.need >= second.peak_measured


def test_other_sizes_are_raised_by_the_same_share(runtime: Runtime, folder: Path) -> None:
    plain, _ = encoded(runtime, encoder_of(runtime), (300, 200))
    for entry in folder.iterdir():
        entry.unlink()
    with greedy(runtime):
        encoded(runtime, encoder_of(runtime))
    other, said = encoded(runtime, encoder_of(runtime), (300, 200))
    assert other.need > plain.need
    assert any("other runs of this tower" in sentence for sentence in said)


def test_without_experience_nothing_is_read_or_written(runtime: Runtime, folder: Path) -> None:
    encoder = encoder_of(runtime)
    encoder.forecast.experience = None
    encoded(runtime, encoder)
    assert list(folder.iterdir()) == []


def test_a_damaged_or_foreign_cache_never_stops_an_answer(runtime: Runtime, folder: Path) -> None:
    experience = experience_of(runtime.model, runtime.card)
    experience._place.write_bytes(b"\xff{")
    report, _ = encoded(runtime, encoder_of(runtime))
    assert report.peak_measured > 0


def test_a_correction_below_what_was_traced_is_not_believed(runtime: Runtime) -> None:
    """The file is whole and what it says is not possible: it must not make a window that is too small."""
    plain, _ = encoded(runtime, encoder_of(runtime))
    place = experience_of(runtime.model, runtime.card)._place
    (shape,) = seen = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps({shape: {**seen[shape], "least": 1, "most": 1, "runs": 3}}), encoding="utf-8")
    report, said = encoded(runtime, encoder_of(runtime))
    assert report.need == plain.need
    assert any("the rest was traced" in sentence for sentence in said)


def with_margin(runtime: Runtime, residual: float, margin: float = 0.05) -> Encoder:
    encoder = encoder_of(runtime, SwapConfig(margin=margin))
    curve = Fit(0.0, 1.0, 0.0, residual, 10)
    sample = Sample(8, 8, 4, 1000, 1000)
    profile = Profile("0" * 32, "toy", {}, "float16", "sdpa", "simulated", "traced", curve, curve, (sample,))
    encoder.forecast.experience = Experience("0" * 32, profile)
    return encoder


def test_a_profiles_residuals_are_the_margin_and_a_margin_that_was_asked_for_stands(runtime: Runtime) -> None:
    usual = encoded(runtime, with_margin(runtime, residual=0.001))[0].need
    assert encoded(runtime, with_margin(runtime, residual=0.20))[0].need == pytest.approx(usual * 1.20 / 1.05, rel=1e-4)
    asked = encoded(runtime, with_margin(runtime, residual=0.20, margin=0.10))[0].need
    assert asked == pytest.approx(usual * 1.10 / 1.05, rel=1e-4)


@pytest.mark.parametrize(("extra", "lent", "need"), [(0, 0, 1024), (300, 0, 1324), (300, 200, 1124), (-100, 0, 924)])
def test_what_is_added_goes_into_the_lent_bytes_first(extra: int, lent: int, need: int) -> None:
    peak = Peak(1024, 1024, 0, (), "by hand")
    assert Job(Call(()), peak, extra).need(lent, kept=0) == need


def test_a_correction_never_makes_more_lent_bytes_worse() -> None:
    peak = Peak(5000, 5000, 0, (), "by hand")
    for extra in (-6000, -100, 0, 700, 9000):
        needs = [replace(Job(Call(()), peak), extra=extra).need(lent, 10) for lent in range(0, 16000, 250)]
        assert needs == sorted(needs, reverse=True)
        assert needs[-1] == 10


def test_a_shape_is_named_by_its_layouts_and_not_by_its_values() -> None:
    def job(value: float) -> Job:
        pixels, grid = torch.full((4, 6), value).bfloat16(), torch.tensor([[1, 2, 2]])
        return Job(Call((pixels,), {"grid": grid}), Peak(1, 1, 0, (), "by hand"))

    assert job(1.0).shape == job(2.0).shape == "bfloat16[4,6] int64[1,3]"


def test_several_runs_that_agree_on_less_are_believed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scratch was foreseen, as on a real card, and the runs did without some of it."""
    encoder, scratch = encoder_of(runtime), 100_000
    monkeypatch.setattr(encoder.forecast, "expected", lambda job: job.peak.live + scratch)
    first, _ = encoded(runtime, encoder)
    assert encoder.forecast.experience is not None
    ((shape, correction),) = encoder.forecast.experience.corrections.items()
    taken = correction.predicted - scratch // 2
    encoder.forecast.experience._seen[shape] = replace(correction, least=taken, most=taken, runs=RUNS)
    encoder.cache.clear()
    lower, said = encoded(runtime, encoder)
    assert first.need - lower.need == pytest.approx(1.05 * scratch / 2, abs=2)
    assert any("is taken off" in sentence for sentence in said)
