"""What is tried on the card: all of it, in another process for a real card, and nothing behind a kernel that fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.host import HostCard
from mmswap.card.outside import Outside
from mmswap.doctor import kernels, steps
from mmswap.doctor.attention import Shape
from mmswap.doctor.check import Check
from mmswap.doctor.devices import KERNEL
from mmswap.doctor.isolation import MARK, NoCard
from mmswap.doctor.patient import Patient
from mmswap.doctor.pinning import PINNED


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMALL", "LARGE", "LARGE_ON_HOST"):
        monkeypatch.setattr(steps.attention, name, Shape(name.lower(), 2, 16, 8))


def accelerated(machine: Machine, fake: FakeCuda, *, own: bool = True) -> Patient:
    found = Patient(machine.here, "cuda:0", None if own else fake)
    found.take(AcceleratorCard(fake, 0, outside=Outside()))
    return found


def test_the_processor_is_tried_here(linux: Machine) -> None:
    found = steps.try_all(Patient(linux.here, "cpu", card=HostCard()))
    assert list(found)[:3] == [KERNEL, PINNED, "attention math"]
    assert "attention default" in found
    assert all(check.state == "ok" for check in found.values())
    assert all(name == check.name for name, check in found.items())


def test_a_stand_in_is_tried_here(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "isolated", lambda *call: pytest.fail("another process does not see it"))
    fake = FakeCuda()
    found = steps.try_all(accelerated(linux, fake, own=False))
    assert found[PINNED].facts["pinned"]
    assert fake.pinned_bytes == 0


def test_a_real_card_is_tried_in_another_process(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def isolated(words: Sequence[str], names: Sequence[str], limit: float) -> Iterator[tuple[str, Check]]:
        asked.append((words[-1], list(names)))
        yield from ((name, Check(name, "ok", "there")) for name in names)

    monkeypatch.setattr(steps, "isolated", isolated)
    found = steps.try_all(accelerated(linux, FakeCuda()))
    assert asked[0][0] == "cuda:0"
    assert list(found) == asked[0][1]
    assert found[KERNEL].value == "there"


@pytest.mark.parametrize("error", [NoCard("it sees none"), OSError("no interpreter")])
def test_a_card_that_the_other_process_does_not_see_is_tried_here(
    linux: Machine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def isolated(*call: Any) -> Iterator[tuple[str, Check]]:
        raise error
        yield

    monkeypatch.setattr(steps, "isolated", isolated)
    kernel = steps.try_all(accelerated(linux, FakeCuda()))[KERNEL]
    assert kernel.state == "ok"
    assert str(error) in kernel.reason


def test_a_step_that_ended_the_other_process_is_not_tried_here(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def isolated(*call: Any) -> Iterator[tuple[str, Check]]:
        yield KERNEL, Check(KERNEL, "ok", "ran")
        yield PINNED, Check(PINNED, "unknown", "no answer", "its process ended with code 134")
        raise NoCard("it sees none any more")

    monkeypatch.setattr(steps, "isolated", isolated)
    monkeypatch.setattr(steps, "pinned", lambda patient: pytest.fail("it would end this process"))
    found = steps.try_all(accelerated(linux, FakeCuda()))
    assert found[PINNED].reason == "its process ended with code 134"
    assert "it sees none any more" in found["attention math"].reason


def test_nothing_is_tried_behind_a_kernel_that_fails(linux: Machine) -> None:
    fake = FakeCuda()
    fake.broken[0] = RuntimeError("device kernel image is invalid")
    found = steps.try_all(accelerated(linux, fake, own=False))
    assert found.pop(KERNEL).state == "broken"
    assert {check.value for check in found.values()} == {"not tried"}
    assert fake.pinned_bytes == 0


def test_the_other_process_runs_the_same_steps() -> None:
    names = [KERNEL, PINNED, "attention math"]
    found = dict(steps.isolated(steps.python_words(steps.CHILD, "cpu"), names, 60))
    assert [found[name].state for name in names] == ["ok", "ok", "ok"]
    assert found["attention math"].facts["large"]["works"]


def test_the_other_process_says_when_it_sees_no_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "cuda:99", KERNEL])
    steps.child()
    (line,) = capsys.readouterr().out.splitlines()
    assert "cuda:99" in json.loads(line.removeprefix(MARK))["no card"]


def test_triton_is_tried_on_a_card_where_it_is_installed(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: True)
    assert kernels.TRITON_KERNEL in steps.names(accelerated(linux, FakeCuda()))
    assert kernels.TRITON_KERNEL not in steps.names(Patient(linux.here, "cpu", card=HostCard()))


def test_a_step_that_raises_is_a_line(linux: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(patient: Patient) -> Check:
        raise KeyError("odd driver")

    monkeypatch.setattr(steps, "pinned", fail)
    found = steps.try_all(Patient(linux.here, "cpu", card=HostCard()))
    assert found[PINNED].state == "unknown"
    assert "odd driver" in found[PINNED].reason
