"""The training goes through all its phases, and a killed run goes on where it was."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import train
from train import PHASES, Training

RESULTS = Path(train.__file__).with_name("results.csv")


def test_phases_run_and_continue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = tmp_path / "state.pt"
    short = [replace(phase, steps=2, size=4) for phase in PHASES]
    monkeypatch.setattr(train, "PHASES", short[:2])
    first = Training(0, state, compiled=False)
    first.run()
    monkeypatch.setattr(train, "PHASES", short)
    second = Training(0, state, compiled=False)
    assert (second.phase, second.step) == (2, 0)
    torch.testing.assert_close(dict(second.model.named_parameters()), dict(first.model.named_parameters()))
    second.run()
    assert second.phase == len(PHASES)
    assert {"say", "see"} <= set(second.averages)


def test_every_claimed_kind_is_exact_in_97_of_100() -> None:
    with RESULTS.open() as file:
        kinds = {row["name"]: float(row["exact %"]) for row in csv.DictReader(file) if row["by"] == "kind"}
    assert min(kinds.values()) >= 97
