"""docs/kv.md says what the benchmark's rows say and what the kinds are; those rows are as good as is promised there.

The rows are SmolLM2's; loading it takes longer than all these tests: `python benchmarks/kv_quality.py` makes them anew.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mmswap.config import KV_KINDS
from mmswap.llm.kv.kinds import KINDS, kv_kind

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "kv.md").read_text(encoding="utf-8")
WORST = {"fp32": 1e-5, "fp16": 1e-9, "bf16": 1e-4, "int8": 1e-3, "fp8_e4m3": 0.02, "fp8_e5m2": 0.05}  # mean KL, nats


def rows() -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "kv_quality.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table() -> dict[tuple[str, str], list[str]]:
    lines = PAGE[PAGE.index("| kind | offsets |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(cell[0], cell[1]): cell[2:] for cell in cells}


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['kind']} {row['offsets']}")
def test_a_real_models_odds_are_those_on_the_page_and_near_fp16(row: dict[str, str]) -> None:
    shown = table()[row["kind"], row["offsets"]]
    assert shown[0] == row["bytes_per_token"]
    for text, name in zip(shown[1:4], ("perplexity", "mean_kl", "max_kl")):
        digits = len(text.partition(".")[2])
        assert abs(float(text) - float(row[name])) <= 0.5 * 10.0**-digits + 1e-9
    assert abs(float(shown[4].rstrip(" %")) - 100 * float(row["same_top"])) <= 0.051
    assert float(row["mean_kl"]) <= WORST[row["kind"]]
    assert abs(float(row["perplexity"]) / float(rows()[1]["perplexity"]) - 1) < 0.05


def test_every_kind_has_its_rows_and_stands_on_the_page() -> None:
    assert {row["kind"] for row in rows()} == set(KINDS)
    assert len(table()) == len(rows())
    for name in KV_KINDS:
        assert f"`{name}`" in PAGE
        assert kv_kind(name, "float16").name in KINDS


def test_the_arithmetic_on_the_page_is_the_kinds() -> None:
    heads, width = 4, 128
    both = heads * width
    assert KINDS["fp16"].bytes_per_token(heads, width) == 4 * both
    assert KINDS["fp32"].bytes_per_token(heads, width) == 8 * both
    assert KINDS["int8"].bytes_per_token(heads, width) == 2 * both + 4 * heads
    assert KINDS["int8"].overhead_bytes(heads, width) == 8 * both
    assert KINDS["fp8_e5m2"].bytes_per_token(heads, width) == 2 * both
    assert KINDS["fp8_e5m2"].overhead_bytes(heads, width) == 8 * both + 4 * heads
