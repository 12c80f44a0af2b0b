"""`mmswap profile --kv`: measured on the carried model, kept, used by `chat --kv fp8`, and mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
from PIL import Image

import mmswap
from mmswap.llm.kv.calibration import Calibration
from mmswap.runtime import carried_model

MODEL = str(carried_model())


def test_offsets_are_measured_kept_and_used_by_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_cache: Path
) -> None:
    code, out, _ = command_line.run(
        monkeypatch, capsys, "profile", "--kv", MODEL, "--contexts", "32,96", "--card", "cpu"
    )
    assert code == 0
    (kept,) = own_cache.glob("kv-*.json")
    assert str(kept) in out
    found = Calibration.of_json(json.loads(kept.read_text("utf-8")))
    assert (len(found.layers), found.contexts[:2]) == (8, (32, 96))
    assert len(found.contexts) == 3  # and a picture
    assert found.contexts[2] > 32
    assert all(min(layer.cosine.values()) > 0.99 for layer in found.layers.values())
    runtime = mmswap.load(card="cpu", kv="fp8")
    assert runtime.caching.calibration == found
    answer = runtime.chat("Describe the picture.", [Image.new("RGB", (90, 60), "red")], max_new_tokens=4)
    assert answer.completion_tokens == 4
    assert any("offsets measured on" in said for said in answer.decisions)


@pytest.mark.parametrize("contexts", ["", "8", "a,b", "128,-1"])
def test_contexts_that_are_none_are_one_sentence(
    contexts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = command_line.run(monkeypatch, capsys, "profile", "--kv", MODEL, "--contexts", contexts)
    assert code == 2
    assert "--contexts" in err
    assert "Traceback" not in err


def test_a_place_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "file"
    place.write_text("")
    words = ("--kv", MODEL, "--contexts", "16", "--card", "cpu", "--out", str(place / "x.json"))
    code, _, err = command_line.run(monkeypatch, capsys, "profile", *words)
    assert code == 2
    assert "--out" in err


def test_json_is_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "kv.json"
    words = ("--kv", MODEL, "--contexts", "16", "--card", "cpu", "--json", "--out", str(place))
    code, out, _ = command_line.run(monkeypatch, capsys, "profile", *words)
    assert code == 0
    assert json.loads(out) == json.loads(place.read_text("utf-8"))
