"""What real runs teach: needs are raised at once, lowered only when several runs agree, and all of it is remembered."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.swap import shelf
from mmswap.swap.experience import RUNS, Correction, Experience
from mmswap.swap.fit import Fit
from mmswap.swap.profile import Profile, Sample

PRINT = "0123456789abcdef" * 2
SHAPE = "bfloat16[4096,1176]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path))
    monkeypatch.setattr(shelf, "_said", set())
    return tmp_path


def test_nothing_is_added_before_anything_was_run() -> None:
    assert Experience(PRINT).extra(SHAPE, 1000) == (0, "")


def test_a_run_that_took_more_raises_the_need_of_the_next() -> None:
    experience = Experience(PRINT)
    said = experience.learn(SHAPE, 1000, 1300)
    assert "1000 B predicted, 1.3 KiB measured" in said
    assert "later plans count with that" in said
    more, why = experience.extra(SHAPE, 1000)
    assert more == 300
    assert "300 B is added" in why


def test_a_later_process_knows_it(folder: Path) -> None:
    Experience(PRINT).learn(SHAPE, 1000, 1300)
    assert Experience(PRINT).extra(SHAPE, 1000)[0] == 300
    assert Experience("f" * 32).extra(SHAPE, 1000) == (0, "")
    assert all(len(entry.name) <= 40 for entry in folder.iterdir())


def test_a_size_that_was_never_run_is_raised_by_the_worst_share() -> None:
    experience = Experience(PRINT)
    experience.learn("small", 1000, 1100)
    experience.learn("large", 10_000, 12_500)
    more, why = experience.extra("other", 4000)
    assert more == 1000
    assert "25%" in why


def test_one_run_that_took_less_lowers_nothing_and_three_that_agree_do() -> None:
    experience = Experience(PRINT)
    for run in range(RUNS):
        assert experience.extra(SHAPE, 1000) == (0, ""), run
        experience.learn(SHAPE, 1000, 800 + run)
    less, why = experience.extra(SHAPE, 1000)
    assert less == -198  # from the most of them
    assert "3 runs like this agree" in why


def test_runs_that_disagree_lower_nothing() -> None:
    experience = Experience(PRINT)
    for measured in (800, 700, 800, 800, 800):
        experience.learn(SHAPE, 1000, measured)
    assert experience.extra(SHAPE, 1000) == (0, "")


def test_one_run_that_took_more_outweighs_any_number_that_took_less() -> None:
    experience = Experience(PRINT)
    for measured in (1200, 800, 800, 800, 800):
        experience.learn(SHAPE, 1000, measured)
    assert experience.extra(SHAPE, 1000)[0] == 200


def test_what_the_margin_covers_anyway_is_no_correction() -> None:
    experience = Experience(PRINT)
    said = experience.learn(SHAPE, 100_000, 100_512)
    assert "the prediction held" in said
    assert experience.extra(SHAPE, 100_000) == (0, "")
    assert experience.extra("other", 100_000) == (0, "")


def test_a_prediction_that_changed_begins_anew() -> None:
    experience = Experience(PRINT)
    experience.learn(SHAPE, 1000, 1300)
    experience.learn(SHAPE, 1290, 1300)
    assert experience.corrections[SHAPE] == Correction(1290, 1300, 1300, 1)
    assert experience.extra(SHAPE, 1290) == (0, "")


def test_the_first_run_is_told_and_the_same_again_is_not() -> None:
    experience = Experience(PRINT)
    assert experience.learn(SHAPE, 1000, 1000) != ""
    assert experience.learn(SHAPE, 1000, 1000) == ""
    assert "later plans" in experience.learn(SHAPE, 1000, 1500)
    assert experience.learn(SHAPE, 1000, 1500) == ""


def test_what_was_not_measured_teaches_nothing(folder: Path) -> None:
    experience = Experience(PRINT)
    assert experience.learn(SHAPE, 1000, 0) == ""
    assert experience.learn(SHAPE, 0, 1000) == ""
    assert list(folder.iterdir()) == []


def test_the_file_is_written_no_more_often_than_something_is_learnt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    put = shelf.put
    monkeypatch.setattr(shelf, "put", lambda path, values: (written.append(path), put(path, values))[1])
    experience = Experience(PRINT)
    for _ in range(50):
        experience.learn(SHAPE, 1000, 900)
    assert len(written) == RUNS


def test_what_another_process_learnt_meanwhile_is_kept() -> None:
    mine, theirs = Experience(PRINT), Experience(PRINT)
    theirs.learn("theirs", 1000, 1500)
    theirs.learn(SHAPE, 1000, 1100)
    mine.learn(SHAPE, 1000, 1050)
    both = Experience(PRINT)
    assert both.extra("theirs", 1000)[0] == 500
    assert both.corrections[SHAPE] == Correction(1000, 1050, 1100, 1)


def test_a_damaged_file_is_as_if_it_were_not_there(folder: Path) -> None:
    Experience(PRINT).learn(SHAPE, 1000, 1300)
    place = next(folder.iterdir())
    good = {"predicted": 10, "least": 11, "most": 12, "runs": 1}
    rows = {
        "a": 3,
        "b": {},
        "c": {**good, "most": "x"},
        "d": {**good, "runs": True},
        "e": {**good, "least": -1},
        "f": {**good, "least": 13},
    }
    place.write_text(json.dumps({**rows, "good": good}))
    assert Experience(PRINT).corrections == {"good": Correction(10, 11, 12, 1)}
    place.write_text("{")
    assert Experience(PRINT).corrections == {}


def test_a_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MMSWAP_CACHE", str(tmp_path / "file"))
    experience = Experience(PRINT)
    experience.learn(SHAPE, 1000, 1300)
    assert experience.extra(SHAPE, 1000)[0] == 300


def test_threads_learn_at_once_and_nothing_is_lost() -> None:
    experience = Experience(PRINT)

    def teach(n: int) -> None:
        for k in range(20):
            experience.learn(f"{n} {k}", 1000, 1100)

    threads = [threading.Thread(target=teach, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Experience(PRINT).corrections) == 80


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5000)), max_size=12), st.sampled_from("abcd"))
def test_a_need_is_never_lowered_by_fewer_than_three_runs(runs: list[tuple[str, int]], asked: str) -> None:
    experience = Experience("none")
    experience._seen.clear()
    experience._keep = lambda: None  # type: ignore[method-assign]
    for shape, measured in runs:
        experience.learn(shape, 1000, measured)
    more, why = experience.extra(asked, 1000)
    mine = [measured for shape, measured in runs if shape == asked]
    assert (more != 0) == (why != "")
    if len(mine) < RUNS:
        assert more >= 0
    if mine and max(mine) > 1010:
        assert more == max(mine) - 1000
    assert 1000 + more >= (max(mine) if mine and more else 0)


def test_a_profiles_margin_stands_in_for_the_fixed_one() -> None:
    sample = Sample(8, 8, 4, 1000, 1000, with_scratch=1000, measured=1200)
    curve = Fit(0.0, 250.0, 0.0, 0.08, 4)
    profile = Profile(PRINT, "toy", {}, "bfloat16", "sdpa", "card", "traced", curve, curve, (sample,))
    experience = Experience(PRINT, profile)
    assert experience.margin(0.05) == 0.08
    assert Experience(PRINT).margin(0.05) == 0.05
    assert experience.extra(SHAPE, 2000)[0] == 400  # the profile's own run took a fifth more
    assert Experience(PRINT, replace(profile, samples=(replace(sample, measured=0),))).extra(SHAPE, 2000)[0] == 0
