"""The op table on the page: what computes each op here, and that a wrong kernel is called broken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_machine import Machine

from mmswap.card.host import HostCard
from mmswap.doctor import ops, steps
from mmswap.doctor.patient import Patient
from mmswap.llm.ops import cpu
from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.trial import ops_on


@pytest.fixture
def patient(linux: Machine) -> Patient:
    return Patient(linux.here, "cpu", card=HostCard())


def test_every_op_is_a_step_and_says_what_computes_it(patient: Patient) -> None:
    wanted = [f"op {op}" for op in ops_on(torch.device("cpu"))]
    assert [name for name in steps.names(patient) if name.startswith(ops.PREFIX)] == wanted
    found = ops.check("op rms_norm", patient)
    assert (found.state, found.facts["backend"], found.reason) == ("ok", "cpu", "")
    assert found.value.startswith("cpu, ")


def test_what_the_reference_computes_has_its_reason(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(cpu.IMPLEMENTATIONS, "linear")
    found = ops.check("op linear", patient)
    assert (found.value, found.reason) == ("reference", "cpu: it does not have this op")


def test_a_kernel_that_is_wrong_is_broken(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return torch.zeros_like(x)

    monkeypatch.setitem(cpu.IMPLEMENTATIONS, "rms_norm", Implementation(zeros, lambda *_: None))
    found = ops.check("op rms_norm", patient)
    assert found.state == "broken"
    assert "--backend reference" in found.advice


def test_a_kernel_that_raises_costs_one_line(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no code for this card")

    monkeypatch.setitem(cpu.IMPLEMENTATIONS, "rms_norm", Implementation(fails, lambda *_: None))
    found = steps.try_all(patient)
    assert "no code for this card" in found["op rms_norm"].reason
    assert found["op rotary"].state == "ok"
