"""`mmswap caption`: a file of captions that is gone on with, whatever stopped the job before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from PIL import Image
from serving import shape

from mmswap.deploy import captioning
from mmswap.deploy.captions import Captions, pictures
from mmswap.errors import OptionError

MADE_BY = {"model": "seer", "prompt": "?"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_file_is_looked_at_but_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.png", "a/d.jpg", "a/c.txt", ".hidden", ".cache/x.png", "č.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert pictures(tmp_path) == ["a/c.txt", "a/d.jpg", "b.png", "č.webp"]
    with pytest.raises(OptionError, match="no folder"):
        pictures(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="no file"):
        pictures(tmp_path / "empty")


def test_what_was_written_is_known_again_and_the_rest_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Captions.open(path, **MADE_BY) as captions:
        assert captions.add({"file": "b", "caption": "ein Löwe\u2028"})
        assert captions.add({"file": "x", "error": "x is text."})
        assert not captions.add({"file": "b", "caption": "told twice"})
    with path.open("ab") as stream:
        stream.write('{"file": "c", "caption": "ein Lö'.encode()[:-1])  # cut off within a letter
    with Captions.open(path, **MADE_BY) as captions:
        assert captions.missing(["a", "b", "c", "x"]) == ["a", "c", "x"]
        assert lines(path) == [{"file": "b", "caption": "ein Löwe\u2028", **MADE_BY}]
        captions.add({"file": "c", "caption": "new"})
    assert [line["file"] for line in lines(path)] == ["b", "c"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"file": "a", "caption": "x", "model": "other", "prompt": "?"}\n', "another model"),
        ('{"file": "a", "caption": "x", "model": "seer", "prompt": "!"}\n', "another prompt"),
        ('{"file": 1, "caption": "x"}\n', "line 1 is no caption"),
        ("[]\n{}\n", "line 1 is no caption"),
        ("a letter to somebody\n", "line 1 is no caption"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OptionError, match=says):
        Captions.open(path, **MADE_BY)
    assert path.read_text(encoding="utf-8") == content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for name, colour in (("a", "red"), ("c", "blue"), ("more/d", "green")):
        shape(colour).save(folder / f"{name}.png")
    (folder / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")
    return folder


def test_a_job_that_was_stopped_goes_on(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "out.jsonl", ("--card", "cpu", "--prompt", "What colour is the shape?")
    caption, asked = captioning.Captioner.caption, []

    def stopped(self: Any, file: str) -> Any:
        asked.append(file)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return caption(self, file)

    monkeypatch.setattr(captioning.Captioner, "caption", stopped)
    code, _, err = run(monkeypatch, capsys, "caption", str(folder), "--out", str(out), *words)
    assert (code, asked) == (130, ["a.png", "b.png", "c.png"])
    assert err.startswith("mmswap: b.png is a damaged or cut-off PNG file")
    assert [row["file"] for row in lines(out)] == ["a.png", "b.png"]
    asked[:] = ["before"] * 3
    code, _, err = run(monkeypatch, capsys, "caption", str(folder), "--out", str(out), *words)
    assert code == 0
    assert asked[3:] == ["b.png", "c.png", "more/d.png"]
    assert "2 captions written" in err
    assert "1 had one before, 1 of 4 files are no good pictures." in err
    captions = {row["file"]: row.get("caption") for row in lines(out)}
    assert captions == {"a.png": "red", "b.png": None, "c.png": "blue", "more/d.png": "green"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere", "--out", "x"), "There is no folder 'nowhere'"),
        ((".", "--out", "no/such/folder/x"), "cannot be written"),
        ((".", "--out", "x", "--prompt", " "), "--prompt is empty"),
        ((".", "--out", "x", "--workers", "-1"), "--workers must be 0 or more"),
        ((".", "--out", "x", "--image-max-pixels", "0"), "--image-max-pixels must be 1 or more"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (4, 4)).save("a.png")
    code, out, err = run(monkeypatch, capsys, "caption", *words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_workers_without_ray_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    import sys

    monkeypatch.setattr(sys.modules["mmswap.cli.caption"], "find_spec", lambda name: None)
    code, _, err = run(monkeypatch, capsys, "caption", ".", "--out", "x", "--workers", "2")
    assert code == 2
    assert 'pip install "mmswap[ray]"' in err
