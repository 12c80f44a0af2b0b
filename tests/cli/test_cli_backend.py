"""`--backend`: forces what computes the ops, says so, and refuses in one sentence what is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import run

from mmswap.llm.ops import use

PROMPT = ("--card", "cpu", "--max-new-tokens", "3", "--explain", "What is this?")


@pytest.fixture(autouse=True)
def auto_again() -> Iterator[None]:
    yield
    use("auto")


def test_the_reference_answers_as_the_fastest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {}
    for name in ("reference", "auto"):
        code, answers[name], said = run(monkeypatch, capsys, "chat", "--backend", name, *PROMPT)
        assert code == 0
        assert (f"--backend {name} was given" in said) == (name != "auto")
    assert len(set(answers.values())) == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("triton", "--backend triton cannot compute on cpu"),
        ("hip", "--backend hip cannot compute on cpu"),
        ("cuda", "--backend cuda is not known: use auto, triton, hip, cpu, reference."),
    ],
)
def test_what_is_not_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    code, out, err = run(monkeypatch, capsys, "chat", "--backend", name, *PROMPT)
    assert (code, out) == (2, "")
    assert err.startswith(f"mmswap: {why}")
    assert "Traceback" not in err
