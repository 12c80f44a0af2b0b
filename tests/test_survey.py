"""The table in docs/architectures.md: what its CSV says, complete, and true when a part of it is run again."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SAMPLE = [
    "blip",
    "cosmos3_edge",
    "ernie4_5_vl_moe",
    "fuyu",
    "git",
    "hyperclovax_vision_v2",
    "kimi_k25",
    "kosmos-2",
    "llama4",
    "mistral4",
    "pix2struct",
    "shieldgemma2",
    "vision-encoder-decoder",
]


@cache
def survey() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import survey as module
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_the_page_says_what_the_csv_says() -> None:
    page = survey().PAGE.read_text(encoding="utf-8")
    assert page.count(survey().BEGIN) == page.count(survey().END) == 1
    shown = page.split(survey().BEGIN)[1].split(survey().END)[0].strip().splitlines()
    wanted = survey().table(survey().read_csv()).splitlines()
    assert shown[1:] == wanted[1:]
    assert shown[0].split(" (")[0] == wanted[0].split(" (")[0]  # the version behind it is that of the survey's day


def test_eighty_architectures_are_traced_and_the_others_have_a_reason() -> None:
    rows = survey().read_csv()
    traced = [row for row in rows if row["traced"] == "True"]
    assert len(traced) >= 80
    for row in traced:
        assert 0 < int(row["features"]) <= int(row["live"])
        assert int(row["patches"]) > 0
        assert int(row["layers"]) > 0
        assert row["tower"]
    for row in rows:
        assert (row["traced"] == "True") is (row["why"] == "")


def test_every_architecture_has_its_row() -> None:
    page = survey().PAGE.read_text(encoding="utf-8")
    if f"(transformers {transformers.__version__})" not in page:
        pytest.skip("another version of transformers lists other architectures")
    assert {row["architecture"] for row in survey().read_csv()} == set(survey().ARCHITECTURES)


@pytest.mark.parametrize("architecture", SAMPLE)
def test_the_row_is_true(architecture: str) -> None:
    if architecture not in survey().ARCHITECTURES:
        pytest.skip("this version of transformers does not have it")
    wanted = next(row for row in survey().read_csv() if row["architecture"] == architecture)
    found = survey().examine(architecture)
    assert str(found.traced) == wanted["traced"]
    assert (found.tower, found.decoder, found.why) == (wanted["tower"], wanted["decoder"], wanted["why"])
    assert [found.layers, found.patches, found.tokens] == [int(wanted[n]) for n in ("layers", "patches", "tokens")]
    assert found.features == int(wanted["features"])
    assert found.live == pytest.approx(int(wanted["live"]), rel=0.05)  # a version of torch may take an op apart anew
