"""Profiles: there and back, what they are for, and files that are damaged, foreign or written by two at once."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.swap import shelf
from mmswap.swap.fit import Fit
from mmswap.swap.profile import PrefillSample, Profile, Sample, fingerprint, keep, read, recall

CONFIG = {"model_type": "toy", "vision_config": {"hidden_size": 64, "depth": 2}, "id2label": {"0": "a"}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "Žluťoučký 图"))
    monkeypatch.setattr(shelf, "_said", set())
    return tmp_path / "Žluťoučký 图"


def profile(name: str = "toy", residual: float = 0.01) -> Profile:
    print_ = fingerprint(CONFIG, "bfloat16", "sdpa", "fake card", "2.13.0")
    curve = Fit(1.0, 2.5, 0.0, residual, 400)
    sample = Sample(224, 448, 400, 1001, 2 << 20, tokens=100, with_scratch=1100, least_free=2 << 20, output=7)
    return Profile(
        print_, name, CONFIG, "bfloat16", "sdpa", "fake card", "traced", curve, curve, (sample, sample),
        (PrefillSample(100, 5000, 6000, 700),), {"layers": 12}, {"torch": "2.13.0"}, {"ops": {"mm": 3}},
    )  # fmt: skip


# --- there and back ---------------------------------------------------------------------------------------------------


def test_json_has_the_fields_that_others_read() -> None:
    values = json.loads(json.dumps(profile().to_json()))
    assert values["tower"].keys() >= {"a", "b", "c", "residual"}
    assert values["samples"][0].keys() >= {"width", "height", "patches", "live", "reserved"}
    assert (values["attention"], values["dtype"]) == ("sdpa", "bfloat16")
    assert len(values["fingerprint"]) == 32
    assert Profile.of_json(values) == profile()


def test_what_is_kept_is_recalled_by_its_fingerprint(folder: Path) -> None:
    place = keep(profile())
    assert place is not None
    assert place.parent == folder
    assert len(place.name) <= 40
    assert recall(profile().fingerprint) == profile()
    assert recall("0" * 32) is None


def test_a_profile_can_be_written_elsewhere(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er" / "ü.json"
    assert keep(profile(), place) == place
    assert read(place) == profile()


def test_the_margin_comes_from_the_residuals_and_is_5_percent_at_the_least() -> None:
    assert profile(residual=0.01).margin == 0.05
    assert profile(residual=0.12).margin == 0.12


# --- fingerprints -----------------------------------------------------------------------------------------------------


def test_every_ingredient_changes_the_fingerprint() -> None:
    usual: dict[str, Any] = {
        "config": CONFIG, "dtype": "float16", "attention": "sdpa", "card": "x", "torch_version": "2.13.0",
    }  # fmt: skip
    other = {
        "config": {**CONFIG, "vision_config": {"hidden_size": 64, "depth": 3}},
        "dtype": "bfloat16",
        "attention": "eager",
        "card": "y",
        "torch_version": "2.12.1",
    }
    prints = [fingerprint(**usual), *(fingerprint(**{**usual, name: value}) for name, value in other.items())]
    assert len(set(prints)) == 6


def test_what_changes_no_figure_changes_no_fingerprint() -> None:
    known = fingerprint(CONFIG, "float16", "sdpa", "x", "2.13.0+cpu")
    told = {"_name_or_path": "/home/somebody", "transformers_version": "5.0", "dtype": "float16"}
    nested = {**CONFIG["vision_config"], "_attn_implementation": "sdpa"}  # type: ignore[dict-item]
    assert fingerprint({**told, **CONFIG, "vision_config": nested}, "float16", "sdpa", "x", "2.13.0+cu130") == known
    assert fingerprint(dict(reversed(CONFIG.items())), "float16", "sdpa", "x", "2.13.0") == known


def test_a_profile_of_another_fingerprint_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = keep(profile())
    assert place is not None
    other = fingerprint(CONFIG, "float16", "sdpa", "fake card", "2.13.0")
    place.rename(folder / f"{other}.json")
    assert recall(other) is None
    assert "its fingerprint is another one" in caplog.text


# --- damage -----------------------------------------------------------------------------------------------------------

WHOLE = json.dumps(profile().to_json())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"format": 1}', '{"format": 99}', WHOLE[:-40], "[" * 100_000, "\x00" * 100],
)
def test_damaged_files_are_ignored_with_one_message(text: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    place = folder / f"{profile().fingerprint}.json"
    place.write_text(text, encoding="utf-8")
    assert recall(profile().fingerprint) is None
    assert recall(profile().fingerprint) is None
    assert caplog.text.count("is ignored") == 1


def test_bytes_that_are_no_text_are_ignored(folder: Path) -> None:
    folder.mkdir()
    (folder / f"{profile().fingerprint}.json").write_bytes(b"\xff\xfe\x00")
    assert recall(profile().fingerprint) is None


@given(st.data())
def test_any_field_of_another_kind_is_a_sentence_and_never_a_crash(data: st.DataObject) -> None:
    values = json.loads(WHOLE)
    holder = data.draw(st.sampled_from([values, values["tower"], values["samples"][0], values["prefill"][0]]))
    name = data.draw(st.sampled_from(sorted(holder)))
    holder[name] = data.draw(st.sampled_from([None, True, "x", -1.5, [], {}, [None]]))
    try:
        found = Profile.of_json(values)
    except ValueError:
        with pytest.raises(ValueError, match=r"^it(s| has) "):
            Profile.of_json(values)
    else:
        assert Profile.of_json(json.loads(json.dumps(found.to_json()))) == found


def test_fields_of_a_later_version_are_left_out() -> None:
    values = json.loads(WHOLE)
    values["samples"][0]["colour"] = "red"
    values["mood"] = 3
    assert Profile.of_json(values) == profile()


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a.json"
    shelf.write_atomically(place, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        shelf.write_atomically(place, "new")
    assert place.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_the_new_file_is_whole_on_the_disk_before_it_takes_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda source, target: (done.append("replace"), replace(source, target)))
    shelf.write_atomically(tmp_path / "a.json", "new")
    assert done == ["sync", "replace"]


def test_a_folder_that_cannot_be_written_is_said_once_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        assert keep(profile()) is None
        assert keep(profile("other")) is None
    assert recall(profile().fingerprint) is None
    assert caplog.text.count("Nothing is kept in") == 1


def test_windows_refuses_for_a_moment_while_somebody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 3
    replace = os.replace

    def busy(source: Any, target: Any) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise PermissionError(13, "The process cannot access the file")
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    monkeypatch.setattr(shelf.os, "name", "nt", raising=True)
    monkeypatch.setattr(shelf.time, "sleep", lambda _: None)
    target = tmp_path / "a.json"
    shelf._replace(_written(tmp_path / "b"), target)
    assert target.read_text() == "b"


def _written(path: Path) -> Path:
    path.write_text("b")
    return path


WRITER = """
import json, sys
from pathlib import Path
from mmswap.swap import shelf
for n in range(120):
    shelf.put(Path(sys.argv[1]), {"who": sys.argv[2], "n": n, "bulk": sys.argv[2] * 20_000})
"""


def test_two_processes_that_write_at_once_never_show_a_part(tmp_path: Path) -> None:
    place = tmp_path / "shared.json"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(place), who], cwd=tmp_path) for who in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        values = shelf.take(place)
        if values is not None:
            assert values["bulk"] == values["who"] * 20_000
            seen.add(values["who"])
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.json"]


def test_the_users_own_cache_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMSWAP_CACHE")
    assert "mmswap" in str(shelf.cache_folder())
