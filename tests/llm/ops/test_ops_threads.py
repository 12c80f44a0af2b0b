"""The number of threads: what the user set, what was measured, and never more than there are cores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmswap.llm.ops import threads
from mmswap.llm.ops.threads import candidates, choose, physical_cores


def test_what_the_user_set_is_kept() -> None:
    found = choose(lambda: pytest.fail("not measured"), environ={"OMP_NUM_THREADS": " 3,2"}, cores=8)
    assert found.threads == torch.get_num_threads()
    assert "because OMP_NUM_THREADS is set" in found.reason


@pytest.mark.parametrize("setting", ["", " ", "abc", "0", "-3", "many,2"])
def test_a_setting_that_nobody_follows_decides_nothing(setting: str) -> None:
    assert choose(environ={"OMP_NUM_THREADS": setting}, cores=2, time_of={1: 1.0, 2: 3.0}.__getitem__).threads == 1


def test_one_core_is_not_measured() -> None:
    assert choose(lambda: pytest.fail("not measured"), environ={}, cores=1).threads == 1


@pytest.mark.parametrize(("cores", "want"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_what_is_tried(cores: int, want: list[int]) -> None:
    assert candidates(cores) == want


@pytest.mark.parametrize(
    ("times", "want"),
    [
        ({1: 1.0, 2: 0.55, 4: 0.3, 8: 0.29}, 4),  # four more threads for a thirtieth are not worth it
        ({1: 1.0, 2: 0.98, 4: 1.3, 8: 2.0}, 1),
        ({1: 1.0, 2: 0.9, 4: 0.8, 8: 0.5}, 8),
    ],
)
def test_the_fewest_threads_that_are_as_fast(times: dict[int, float], want: int) -> None:
    found = choose(environ={}, cores=8, time_of=times.__getitem__)
    assert found.threads == want
    assert f"4: {times[4] * 1e3:.3g} ms" in found.reason


def test_a_step_is_run_and_torch_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SECONDS", 0.001)
    seen: set[int] = set()
    before = torch.get_num_threads()
    choose(lambda: seen.add(torch.get_num_threads()), environ={}, cores=2)
    assert seen == {1, 2}
    assert torch.get_num_threads() == before


def test_a_step_that_fails_leaves_torch_as_it_was() -> None:
    before = torch.get_num_threads()

    def fails() -> None:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        choose(fails, environ={}, cores=2)
    assert torch.get_num_threads() == before


def test_threads_of_one_core_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for processor, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(threads, "_PROCESSORS", tmp_path)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "none")
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert physical_cores() == 2
    (tmp_path / "quota").write_text("100000 100000\n")
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "quota")
    assert physical_cores() == 1
