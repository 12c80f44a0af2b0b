"""`mmswap profile`: a table or JSON from a config alone, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import pytest
import transformers
from family_configs import CONFIGS

from mmswap.swap.profile import read

SIZES = ("--sizes", "56x56,112x112,168X112,224x224")
Result = tuple[int, str, str]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "Ünï 图"))
    return tmp_path / "Ünï 图"


@pytest.fixture
def model(tmp_path: Path) -> str:
    config_class, values = CONFIGS["qwen2_vl"]
    config = getattr(transformers, config_class)(**values(4, 64))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return str(tmp_path / "tiny")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> Result:
    return command_line.run(monkeypatch, capsys, "profile", *words)


def test_json_has_every_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, cache: Path
) -> None:
    code, out, _ = run(monkeypatch, capsys, model, *SIZES, "--json", "--dtype", "bfloat16")
    assert code == 0
    values = json.loads(out)
    assert values.keys() >= {"fingerprint", "tower", "samples", "attention", "dtype", "prefill", "weights", "config"}
    assert values["tower"].keys() >= {"a", "b", "c", "residual"}
    assert (values["attention"], values["dtype"]) == ("sdpa", "bfloat16")
    assert [(one["width"], one["height"]) for one in values["samples"]] == [
        (56, 56),
        (112, 112),
        (168, 112),
        (224, 224),
    ]
    for one in values["samples"]:
        assert all(type(one[name]) is int for name in ("patches", "live", "reserved"))
        assert 0 < one["live"] <= one["reserved"]
    (file,) = cache.iterdir()
    assert json.loads(file.read_text(encoding="utf-8")) == values


def test_the_table_shows_every_figure_the_curve_and_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    place = tmp_path / "out" / "p.json"
    code, out, _ = run(monkeypatch, capsys, model, *SIZES, "--out", str(place))
    assert code == 0
    for word in ("patches", "live", "with scratch", "reserved", "least free", "expandable", "168x112", "bytes a patch"):
        assert word in out
    assert "no square term" in out
    assert "Prefill of" in out
    assert f"Written to {place}." in out
    kept = read(place)
    assert kept is not None
    assert len(kept.samples) == 4


def test_eager_attention_is_told_from_the_curve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    code, out, _ = run(monkeypatch, capsys, model, "--sizes", "224x224,448x448,560x560,672x672", "--attention", "eager")
    assert code == 0
    assert "a pair of patches (a square term" in out


def test_the_carried_model_can_be_measured_on_a_simulated_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mmswap.runtime import carried_model

    words = (str(carried_model()), "--card", "sim:1GiB", "--measure", "--sizes", "64x64,128x96")
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0
    assert "measured" in out.splitlines()[2]
    assert "simulated" in out


def test_a_cache_that_cannot_be_written_is_said_and_the_table_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "file"))
    code, out, _ = run(monkeypatch, capsys, model, *SIZES)
    assert code == 0
    assert "Not kept" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere"),
        (("{model}", "--sizes", "12"), "--sizes 12"),
        (("{model}", "--sizes", "0x5"), "--sizes 0x5"),
        (("{model}", "--sizes", ""), "--sizes"),
        (("{model}", "--dtype", "int8"), "--dtype"),
        (("{model}", "--attention", "flash"), "--attention"),
        (("{model}", "--card", "sim:"), "sim:"),
        (("{model}", "--measure", "--card", "cpu"), "tiny"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    code, out, err = run(monkeypatch, capsys, *(word.format(model=model) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("mmswap: ")
    assert err.count("\n") == 1


def test_a_place_that_cannot_be_written_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = run(monkeypatch, capsys, model, "--sizes", "56x56", "--out", str(tmp_path / "file" / "p.json"))
    assert code == 2
    assert "cannot be written" in err
