"""README.md and docs/ say what the program says: tables from their CSV, a plan as it is printed, links that lead on."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

import mmswap.profiles as profiles

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def peak_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peak_table", ROOT / "benchmarks" / "peak_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_serving_is_that_of_its_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("serve_table")
    with table.CSV.open(newline="") as file:
        content = table.table(csv.DictReader(file))
    assert content in read(ROOT / "docs" / "serving.md")


def test_the_table_of_decode_is_that_of_its_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("decode_table")
    with table.CSV.open(newline="") as file:
        content = table.table(csv.DictReader(file))
    assert table.between_markers(read(table.PAGE), "decode", content) == read(table.PAGE)


def test_the_tables_of_the_peaks_are_those_of_their_csv_and_stand_on_one_page(peak_table: ModuleType) -> None:
    """The README held a copy of 60 rows."""
    page = read(peak_table.PAGE)
    with peak_table.CSV.open(newline="") as file:
        tables = {"peaks": peak_table.errors(csv.DictReader(file)), "shipped": peak_table.shipped(profiles.names())}
    for name, content in tables.items():
        assert peak_table.between_markers(page, name, content) == page
        assert [one.name for one in PAGES if f"<!-- {name}:begin -->" in read(one)] == ["peaks.md"]
    with pytest.raises(ValueError, match="has no <!-- peaks:begin -->"):
        peak_table.between_markers(read(ROOT / "README.md"), "peaks", "")


def test_the_plan_on_the_pages_is_what_plan_prints() -> None:
    """The sample lacked rows, legends and reasons, and every sample said that nothing is evicted."""
    from mmswap.blueprint import Blueprint
    from mmswap.cli import plan_page
    from mmswap.sizing import Wish, room_of, size_up

    sizing = size_up(Blueprint.of("qwen2.5-vl-7b"), room_of("RX 7900 XT"), Wish(images=4, context=32768))
    assert sizing.evict
    printed = io.StringIO()
    plan_page.show(sizing, Console(file=printed, width=100, no_color=True))
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    page = read(ROOT / "docs" / "planning.md")
    block = page[page.index("```\nqwen2.5-vl-7b on") + 4 :].partition("\n```")[0]
    assert block.splitlines() == lines
    readme = read(ROOT / "README.md")
    block = readme[readme.index("```\nIt fits") + 4 :].partition("\n```")[0]
    assert len(block.splitlines()) == 5
    assert set(block.splitlines()) <= set(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", read(page)):
        assert target.startswith("http") or (page.parent / target).exists(), target
