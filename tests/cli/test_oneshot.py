"""Commands that answer once do without Python's cycle collector, and leave it as they found it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmswap.cli import main
from mmswap.cli.oneshot import collector_paused
from mmswap.runtime import carried_model

HERE = Path(__file__).parent  # not the root: `-m` would put ./mmswap before the installed package


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_then_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    seen = list[bool]()

    def fails() -> None:
        with collector_paused():
            seen.append(gc.isenabled())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fails()
    assert seen == [False]
    assert gc.isenabled() is enabled


@pytest.mark.parametrize("command", ["plan", "profile"])
def test_one_shot_commands_pause_it(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mmswap.blueprint import Blueprint
    from mmswap.errors import ModelError

    seen: list[bool] = []

    def stopped(*_: object, **__: object) -> None:
        seen.append(gc.isenabled())
        raise ModelError("Stopped here.")

    gc.enable()
    monkeypatch.setattr(Blueprint, "of", stopped)
    monkeypatch.setattr(sys.modules["mmswap.cli.plan"], "_sized", stopped)
    more = ["--card", "sim:1GiB"] if command == "plan" else []
    monkeypatch.setattr(sys, "argv", ["mmswap", command, "anything", *more])
    with pytest.raises(SystemExit):
        main()
    assert "Stopped here." in capsys.readouterr().err
    assert seen == [False]
    assert gc.isenabled()


def test_a_plan_ends_in_silence() -> None:
    """Objects that are kept from Python's last collection make triton's bindings complain when the process ends."""
    words = ["plan", str(carried_model()), "--card", "sim:1GiB", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "mmswap", *words], cwd=HERE, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
