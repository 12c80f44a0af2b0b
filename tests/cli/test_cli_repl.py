"""The conversation: commands, a bad picture that is not kept, and a Ctrl-C that stops the answer only."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import mmswap
from mmswap.chat import Conversation
from mmswap.cli.repl import Repl
from mmswap.config import SamplingConfig
from mmswap.runtime import Runtime


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return mmswap.load(card="sim:1GiB")


@pytest.fixture(autouse=True)
def _own_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "a red one.png"
    Image.new("RGB", (60, 80), "red").save(path)
    return str(path)


def talk(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, *lines: Any, **options: Any) -> Repl:
    """Type the lines, then end the input; an exception among them is raised while the person is typing."""
    script: Iterator[Any] = iter(lines)

    def typed(_prompt: str = "") -> str:
        line = next(script, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr(builtins, "input", typed)
    repl = Repl(runtime, Conversation(), SamplingConfig(max_new_tokens=4), **options)
    repl.run()
    return repl


def test_a_picture_goes_with_the_next_question_and_stays_in_the_conversation(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    repl = talk(runtime, monkeypatch, f"/image '{picture}'", "What is this?", "And now?")
    roles = [message["role"] for message in repl.conversation.messages]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert [part["type"] for part in repl.conversation.messages[0]["content"]] == ["image", "text"]
    assert repl.pending == []
    out, err = capsys.readouterr()
    assert "60x80" in out
    assert err.count("prefill") == 2


def test_a_name_with_spaces_needs_no_quotes(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, picture: str) -> None:
    assert talk(runtime, monkeypatch, f"/image {picture}").pending == [picture]


def test_a_question_behind_a_picture_is_one_sentence_and_not_one_for_each_word(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    repl = talk(runtime, monkeypatch, f"/image '{picture}' What shape is this?")
    assert repl.pending == [picture]
    told = capsys.readouterr().err
    assert told.count("does not exist") == 1
    assert "a line of its own" in told


def test_a_bad_picture_is_named_and_the_next_turn_answers(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, picture: str
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"<svg></svg>")
    repl = talk(runtime, monkeypatch, f"/image {bad}", "Hello", f"/image {picture}", "What is this?")
    assert "bad.png" in capsys.readouterr().err
    assert len(repl.conversation.messages) == 4
    assert len(repl.conversation.messages[0]["content"]) == 1


def test_plan_explains_and_runs_nothing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], picture: str
) -> None:
    repl = talk(runtime, monkeypatch, "/plan", f"/image '{picture}'", "/plan")
    out = capsys.readouterr().out
    assert "No pictures wait" in out
    assert "Nothing is evicted because the encoder needs" in out
    assert repl.conversation.messages == []
    assert repl.pending == [picture]


def test_reset_help_unknown_and_exit(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repl = talk(runtime, monkeypatch, "Hello", "/reset", "/help", "/nonsense", "", "/exit", "never asked")
    out, err = capsys.readouterr()
    assert repl.conversation.messages == []
    assert "/image FILE" in out
    assert "/nonsense" in err


def test_ctrl_c_stops_the_answer_and_not_the_program(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """G9: the first Ctrl-C ends the answer, the weights are back, and the next question is answered."""
    pieces = 0
    original = type(runtime).stream

    def stream(self: Runtime, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        advance = made.moves

        def interrupted() -> Iterator[Any]:
            nonlocal pieces
            for move in advance:
                yield move
                pieces += isinstance(move, str)
                if pieces == 1:
                    raise KeyboardInterrupt

        made.moves = interrupted()
        return made

    monkeypatch.setattr(type(runtime), "stream", stream)
    repl = talk(runtime, monkeypatch, "Hello", KeyboardInterrupt(), "Hello again")
    out, err = capsys.readouterr()
    assert "[stopped]" in out
    assert "Ctrl-D" in err
    assert [message["role"] for message in repl.conversation.messages] == ["user", "assistant"] * 2
