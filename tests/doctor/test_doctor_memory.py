"""Every source of free bytes with its value or its reason; Windows' budget; what spilled."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cuda import FakeCuda
from fake_machine import Machine

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.backend import Properties
from mmswap.card.host import HostCard
from mmswap.card.outside import Outside
from mmswap.card.simulated import SimulatedCard
from mmswap.card.spill import Spill
from mmswap.card.wddm import Budget
from mmswap.doctor import memory
from mmswap.doctor.patient import Patient

MIB = 1 << 20
TOTAL = 16368 * MIB


class Windows:
    """Stands in for `mmswap.card.wddm.Wddm`."""

    mode = "default"
    route = "the LUID of hipDeviceGetLuid"

    def __init__(self, answer: Budget | str, shared: int | str = 0) -> None:
        self.answer = answer
        self.shared = shared

    def memory(self) -> Budget | str:
        return self.answer

    def adapter_used(self) -> int | str:
        return "unknown, because there are no such counters"

    def process_shared(self) -> int | str:
        return self.shared


def card_with(wddm: Any, **options: Any) -> tuple[AcceleratorCard, FakeCuda]:
    fake = FakeCuda(total=TOTAL, hip=True, windows=True)
    fake.devices = [Properties("AMD Radeon RX 7900 GRE", TOTAL, False, "gfx1100")]
    fake.driver = lambda: (16227 * MIB, TOTAL)
    return AcceleratorCard(fake, 0, outside=Outside(wddm=wddm), **options), fake


BUDGET = Budget(15569 * MIB, 141 * MIB, None, 8 << 30, 0)


def test_each_source_is_a_line_with_its_bytes_or_its_reason() -> None:
    card, _ = card_with(Windows(BUDGET))
    found = {check.name: check for check in memory.sources(card)}
    assert found["driver"].facts["bytes"] == 16227 * MIB
    assert found["WDDM"].facts["bytes"] == (16227 - (16368 - 15569)) * MIB
    assert found["PDH"].state == "unknown"
    assert found["PDH"].reason == "because there are no such counters"
    assert found["PDH"].facts["bytes"] is None
    assert memory.free(card).facts["bytes"] == 15428 * MIB


def test_a_source_that_lies_is_a_note_and_the_answer_says_how_to_override_it() -> None:
    card, fake = card_with(None)
    fake.driver = lambda: (0, 0)
    found = {check.name: check for check in memory.sources(card)}
    assert (found["driver"].state, found["driver"].facts["doubtful"]) == ("note", True)
    assert memory.free(card).state == "note"
    assert "--vram-limit" in memory.free(card).advice


def test_a_driver_that_raises_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    card, fake = card_with(None)

    def fail() -> tuple[int, int]:
        raise RuntimeError("HIP error: unknown error")

    fake.driver = fail
    found = {check.name: check for check in memory.sources(card)}
    assert "HIP error: unknown error" in found["driver"].reason


def test_too_much_held_is_a_note() -> None:
    card = SimulatedCard("sim:1GiB")
    card.claim("weights", 3 << 30)
    check = memory.free(card)
    assert (check.state, check.facts["over"], check.facts["bytes"]) == ("note", 2 << 30, 0)


def test_the_budget_its_usage_and_how_the_adapter_was_found(windows: Machine) -> None:
    card, _ = card_with(Windows(BUDGET))
    check = memory.wddm(Patient(windows.here, "auto", card=card))
    assert check.state == "ok"
    assert (check.facts["budget"], check.facts["usage"]) == (15569 * MIB, 141 * MIB)
    assert check.facts["mode"] == "default"
    assert "hipDeviceGetLuid" in check.reason


@pytest.mark.parametrize(
    ("found", "value", "reason"),
    [
        (Windows("unknown, because CreateDXGIFactory1 failed with 0x887A0004"), "unknown", "0x887A0004"),
        ("it is not asked for (MMSWAP_WDDM_BUDGET)", "not used", "MMSWAP_WDDM_BUDGET"),
    ],
)
def test_a_budget_that_is_not_known_is_a_note(windows: Machine, found: Any, value: str, reason: str) -> None:
    check = memory.wddm(Patient(windows.here, "auto", card=card_with(found)[0]))
    assert (check.state, check.value) == ("note", value)
    assert reason in check.reason


def test_no_budget_where_there_is_none(linux: Machine, windows: Machine) -> None:
    assert memory.wddm(Patient(linux.here, "cpu", card=HostCard())).state == "ok"
    assert memory.wddm(Patient(windows.here, "cpu", card=HostCard())).state == "ok"


def test_a_simulated_budget_is_not_denied(linux: Machine) -> None:
    card = SimulatedCard("sim:16368MiB+wddm")
    check = memory.wddm(Patient(linux.here, card.spec, card=card))
    assert (check.state, check.value) == ("ok", "15.2 GiB, simulated")
    assert check.reason.endswith("and falls to 14.2 GiB as the card fills")
    assert (check.facts["budget"], check.facts["filled"]) == (15569 * MIB, 14540 * MIB)
    steady = SimulatedCard("sim:16GiB", budget=12 << 30)
    assert memory.wddm(Patient(linux.here, steady.spec, card=steady)).reason == "sim:16GiB was given it"
    assert "none" in memory.wddm(Patient(linux.here, "sim:16GiB", card=SimulatedCard("sim:16GiB"))).value


def test_spilled_bytes_are_a_note_and_a_little_is_none() -> None:
    much, _ = card_with(Windows(BUDGET, shared=929 * MIB))
    check = memory.spill(much)
    assert (check.state, check.facts["bytes"]) == ("note", 929 * MIB)
    assert "shared GPU memory" in check.reason
    little, _ = card_with(Windows(BUDGET, shared=MIB))
    assert memory.spill(little).state == "ok"
    silent, _ = card_with(Windows(BUDGET, shared="unknown, because PDH failed"))
    assert memory.spill(silent).state == "unknown"
    assert "PDH failed" in memory.spill(silent).reason


def test_a_simulated_card_counts_its_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimulatedCard("sim:1GiB")
    assert memory.spill(card).state == "ok"
    monkeypatch.setattr(card, "spilled", lambda: Spill(99 * MIB, "noticed now", "the ledger"))
    assert memory.spill(card).state == "note"
