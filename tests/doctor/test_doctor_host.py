"""Host bandwidth, and the carried model's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mmswap import runtime
from mmswap.card.host import HostCard
from mmswap.doctor import carried, host
from mmswap.errors import ModelError


def test_bandwidth_is_bytes_by_the_median_second(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 10.0, 12.0, 20.0, 29.0])  # 1, 2 and 9 s
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(ticks))
    check = host.bandwidth(nbytes=1000, runs=3)
    assert check.facts["bytes_per_second"] == 500
    assert check.facts["threads"] == torch.get_num_threads()
    assert str(torch.get_num_threads()) in check.reason
    assert host.COPIED * 2 <= 512 << 20


def test_the_hosts_memory_is_told_in_bytes() -> None:
    facts = host.host_memory(HostCard()).facts
    assert 0 < facts["available"] <= facts["total"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(carried.folder(), tmp_path / "seer"))


def test_the_carried_model_is_whole(model: Path) -> None:
    check = carried.whole(model)
    assert check.state == "ok"
    assert check.facts["tensors"] > 100


def test_a_missing_and_a_damaged_file_are_named(model: Path) -> None:
    weights = model / carried.WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    assert (carried.whole(model).state, carried.whole(model).value) == ("broken", "damaged")
    weights.write_bytes(whole)
    (model / "tokenizer.json").write_text("{", encoding="utf-8")
    assert carried.whole(model).state == "broken"
    (model / "tokenizer.json").unlink()
    assert "tokenizer.json" in carried.whole(model).reason
    assert carried.answers(model).state == "broken"


def test_a_model_that_does_not_load_is_broken_in_full_only(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: str, **options: str) -> None:
        assert (source, options) == (str(model), {"card": "cpu"})
        raise ModelError("the config lacks a model_type")

    monkeypatch.setattr(runtime, "load", load)
    assert carried.whole(model).state == "ok"
    check = carried.answers(model)
    assert (check.state, check.value) == ("broken", "does not load or answer")
    assert "model_type" in check.reason


def test_the_carried_model_loads_and_answers() -> None:
    assert carried.answers(carried.folder()).state == "ok"
