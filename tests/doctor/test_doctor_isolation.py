"""A crash or a hang in another process costs one line, and the steps behind it are run all the same."""

from __future__ import annotations

import sys

import pytest

from mmswap.doctor import isolation
from mmswap.doctor.check import Check
from mmswap.doctor.isolation import NoCard, isolated, python_words

STEPS = ["one", "two", "three", "four"]
TALK = (
    "import os, signal, sys, time\n"
    "from mmswap.doctor.check import Check\n"
    "from mmswap.doctor.isolation import say, speak\n"
    "def run(name):\n"
    "    print('noise on the same line ', end='\\n')\n"
    "    if name in sys.argv[1].split(','): {fault}\n"
    "    return Check(name, 'ok', 'ran', facts=dict(bytes=7))\n"
    "speak(sys.argv[2:], run)\n"
)


def results(fault: str, *bad: str, limit: float = 60) -> dict[str, Check]:
    return dict(isolated(python_words(TALK.format(fault=fault), ",".join(bad)), STEPS, limit))


def test_every_step_is_told_in_order_and_whole() -> None:
    found = list(isolated(python_words(TALK.format(fault="pass"), ""), STEPS, 60))
    assert [name for name, _ in found] == STEPS
    assert found[0][1] == Check("one", "ok", "ran", facts={"bytes": 7})


def test_a_crash_costs_its_own_line() -> None:
    found = results("print('Memory access fault by GPU node-1', file=sys.stderr, flush=True); os._exit(134)", "two")
    assert [found[name].state for name in STEPS] == ["ok", "unknown", "ok", "ok"]
    assert "code 134" in found["two"].reason
    assert "Memory access fault" in found["two"].reason


def test_a_hang_costs_its_own_line() -> None:
    found = results("time.sleep(600)", "three", limit=1)
    assert [found[name].state for name in STEPS] == ["ok", "ok", "unknown", "ok"]
    assert "1 s" in found["three"].reason


def test_after_two_silent_steps_the_rest_is_not_tried() -> None:
    found = results("os._exit(1)", "one", "two", "three")
    assert [found[name].value for name in STEPS] == ["no answer", "no answer", "not tried", "not tried"]
    assert "2 steps" in found["four"].reason


def test_a_process_that_sees_no_card_is_told_from_one_that_dies() -> None:
    words = python_words("from mmswap.doctor.isolation import say; say({'no card': 'torch sees none'})")
    with pytest.raises(NoCard, match="torch sees none"):
        list(isolated(words, STEPS, 60))


def test_a_program_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError):
        list(isolated(["/no/such/program"], STEPS, 1))
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(OSError, match="interpreter"):
        python_words("pass")


def test_a_process_that_never_begins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "START_LIMIT", 0.5)
    found = dict(isolated(python_words("import time; time.sleep(600)"), ["one"], 60))
    assert found["one"].state == "unknown"
    assert "0.5 s" in found["one"].reason
