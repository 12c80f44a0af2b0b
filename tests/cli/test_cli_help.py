"""What `--help` says of every command, and what a flag says of a value that it cannot read."""

from __future__ import annotations

import re

import pytest
from command_line import run

from mmswap.cli import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]


@pytest.fixture(autouse=True)
def usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_no_command_is_cut_off_in_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    assert len(COMMANDS) >= 4
    assert all(re.search(rf"^  {name} +[A-Z].*\.$", out, re.MULTILINE) for name in COMMANDS)
    assert "..." not in out[out.index("Commands:") :]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_a_value_names_it_in_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """`--card <str>` stood beside `--vram-limit SIZE`, and a default written by hand beside typer's own."""
    code, out, _ = run(monkeypatch, capsys, command, "--help")
    assert code == 0
    flags = out[out.index("Options:") :]
    assert "<" not in flags
    assert all(re.match(r"(WxH|[A-Z]+)(,\.\.\.)? ", rest) for rest in re.findall(r"^  --[\w-]+ (\S.*)", flags, re.M))
    assert re.search(r"\w\. \[default", flags) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_card_that_can_be_opened_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """doctor did not tell of +wddm."""
    _, out, _ = run(monkeypatch, capsys, command, "--help")
    if "sim:" not in out:  # simulated cards are of no use to bench
        return
    for card in ("auto", "cpu", "cuda:1", "sim:16GiB@24GB/s", "sim:16GiB+wddm"):
        assert card in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("chat", "--context", "banana", "hi"), "'--context': 'banana' is not a whole number."),
        (("chat", "--top-k", "2.5", "hi"), "'--top-k': '2.5' is not a whole number."),
        (("chat", "--temperature", "warm", "hi"), "'--temperature': 'warm' is not a number."),
        (("plan", "x", "--images", "two"), "'--images': 'two' is not a whole number."),
    ],
)
def test_a_number_that_cannot_be_read_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
