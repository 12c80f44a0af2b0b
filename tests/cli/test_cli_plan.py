"""`mmswap plan` as a person types it: a page, a JSON object, a picture; mistakes are one sentence and exit code 2."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import command_line
import pytest
from PIL import Image
from rich.console import Console

from mmswap.cli import plan_page
from mmswap.runtime import carried_model

MODEL = str(carried_model())
KEYS = {
    "card", "groups", "need", "deficit", "evict", "window_ms", "max_context", "max_context_with_window", "max_pixels",
    "max_pixels_with_window", "reasons",
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return command_line.run(monkeypatch, capsys, "plan", *words)


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(monkeypatch, capsys, MODEL, "--json", *words)
    assert code == 0, err
    values: dict[str, Any] = json.loads(out)
    return values


def test_json_has_every_field_and_integers_for_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ask(monkeypatch, capsys, "--card", "RX 7900 XT", "--image", "384x320", "--images", "2", "--kv", "fp8")
    assert set(values) >= KEYS
    assert set(values["card"]) >= {"total", "free"}
    assert sum(values["groups"].values()) + values["card"]["free"] == values["card"]["total"] == 20 << 30
    for number in ("need", "deficit", "max_context", "max_pixels"):
        assert type(values[number]) is int
    assert all(type(size) is int for size in values["groups"].values())
    assert values["reasons"][0].startswith("This is a calculation, not a measurement.")


def test_what_gives_way_is_named_with_its_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roomy = ask(monkeypatch, capsys, "--card", "sim:1GiB", "--image", "384x320")
    assert roomy["evict"] == []
    held = sum(roomy["groups"].values())
    tight = ask(monkeypatch, capsys, "--card", f"sim:{held + 1_000_000}@1GB/s", "--image", "384x320")
    layers = [f"model.language_model.layers.{index}" for index in (7, 6)]
    assert tight["evict"] == layers
    assert tight["window_ms"] == pytest.approx(tight["evict_bytes"] / 1e9 * 1e3)


def test_a_model_that_does_not_fit_is_a_plan_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ask(monkeypatch, capsys, "--card", "sim:8MiB", "--image", "384x320")
    assert values["fits"] == "no"
    assert values["card"]["free"] < 0 < values["shortfall"]
    assert (values["max_context_with_window"], values["max_pixels_with_window"]) == (0, 0)
    assert sum(values["groups"].values()) + values["card"]["free"] == values["card"]["total"]


def test_a_page_for_people_and_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "card.png"
    code, out, _ = run(monkeypatch, capsys, MODEL, "--card", "sim:32MiB", "--image", "384x320", "--png", str(file))
    assert code == 0
    for word in ("not a measurement", "vision tower", "decoder layers", "KV cache", "free", "context (tokens)"):
        assert word in out
    with Image.open(file) as drawn:
        assert drawn.size[0] == 1400
        assert drawn.getpixel((2, 2)) == (251, 251, 252)
        assert len(drawn.getcolors(1 << 21)) > 30


def test_a_processor_has_no_window_and_no_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, MODEL, "--card", "cpu", "--image", "384x320")
    assert code == 0
    for word in ("with a window", "without eviction", "The link is taken", "GB/s"):
        assert word not in out
    assert "what the host's kernels take aside" in " ".join(out.split())


def test_a_picture_above_the_cap_is_explained_beside_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1344x1344 was asked for and fitted, 896x896 was the largest that fits: the tower makes that of any picture."""
    code, out, _ = run(monkeypatch, capsys, MODEL, "--card", "sim:1GiB", "--image", "384x320")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("picture")]
    assert rows[0] == ["picture", "(384x320", "asked)", *["any,", "as", "96x80"] * 2]
    assert rows[1] == ["picture", "(pixels)", "any", "any"]
    assert ask(monkeypatch, capsys, "--card", "sim:1GiB", "--image", "384x320")["any_image_with_window"] is True


def test_what_is_missing_is_one_figure_on_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, MODEL, "--card", "sim:8MiB", "--image", "384x320")
    assert code == 0
    page = " ".join(out.split())
    figures = set(re.findall(r"([\d.]+ [KMG]iB) are missing", page))
    assert len(figures) == 1
    assert page.count("are missing") == 3  # the headline, the bar that decides, its reason
    assert re.search(rf"missing +{re.escape(figures.pop())} ", out)
    assert "too much" not in page
    assert "deficit" not in page


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_the_page_survives_narrow_terminals_no_colours_and_ascii(width: int) -> None:
    from mmswap.blueprint import Blueprint
    from mmswap.sizing import Wish, room_of, size_up

    sizing = size_up(Blueprint.of(MODEL), room_of("sim:24MiB"), Wish(384, 320))
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict", write_through=True)
    plan_page.show(sizing, Console(file=stream, width=width, no_color=True))
    lines = raw.getvalue().decode("ascii").splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("[") and line.endswith("]") for line in lines) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((MODEL, "--image", "0x0"), "0x0"),
        ((MODEL, "--image", "1344"), "1344x1008"),
        ((MODEL, "--images", "0"), "--images"),
        ((MODEL, "--kv", "fp7"), "fp8"),
        ((MODEL, "--quantize", "int3"), "int4"),
        ((MODEL, "--dtype", "int3"), "--dtype"),
        ((MODEL, "--attention", "flash"), "--attention"),
        ((MODEL, "--prefill-chunk", "1"), "--prefill-chunk"),
        ((MODEL, "--link", "24"), "24GB/s"),
        ((MODEL, "--vram-limit", "lots"), "--vram-limit"),
        ((MODEL, "--vram-limit", "0"), "--vram-limit 0"),
        ((MODEL, "--reserve", "1GB"), "--reserve"),
        ((MODEL, "--card", "RX 9060 XT"), "RX 9060 XT 16GB"),
        ((MODEL, "--card", "potato"), "potato"),
        ((MODEL, "--card", "sim:16GiB", "--image", "9000x10"), "of 9000x10: absolute aspect ratio must be smaller"),
        ((MODEL, "--card", "sim:16GiB", "--context", "4096"), "2048"),
        ((MODEL, "--card", "sim:16GiB", "--context", "16"), "16"),
        (("no/such-model", "--card", "sim:16GiB"), "no/such-model"),
        (("", "--card", "sim:16GiB"), "empty"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 2
    assert out == ""
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
