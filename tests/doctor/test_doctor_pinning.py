"""A pin is really tried, at its exact size, and given back; late errors are found and consumed."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda
from fake_machine import Machine
from torch import Tensor

from mmswap.card.accelerator import AcceleratorCard
from mmswap.card.host import HostCard
from mmswap.card.outside import Outside
from mmswap.doctor.check import Check
from mmswap.doctor.patient import Patient
from mmswap.doctor.pinning import TRIED, pinned


class Pins(FakeCuda):
    """`late`: how many calls after a pin fail; `refuse`: whether it fails at once; `stuck`: whether unpinning fails."""

    def __init__(self, *, late: int = 0, refuse: bool = False, stuck: bool = False, dead: bool = False) -> None:
        super().__init__()
        self.errors = 99 if dead else 0
        self.after, self.refuse, self.stuck = late, refuse, stuck
        self.sizes: list[int] = []

    def pin(self, tensor: Tensor) -> None:
        assert tensor.data_ptr() % 4096 == 0
        self.sizes.append(tensor.numel())
        self.errors = self.after
        if self.refuse:
            raise RuntimeError("cudaHostRegister failed with status 2")

    def unpin(self, tensor: Tensor) -> None:
        if self.stuck:
            raise RuntimeError("cudaHostUnregister failed")
        self.sizes.append(-tensor.numel())

    def probe(self, index: int) -> None:
        if self.errors:
            self.errors -= 1
            raise RuntimeError("HIP error: invalid argument")


def check_of(fake: FakeCuda, machine: Machine) -> Check:
    found = Patient(machine.here, "auto", fake)
    found.take(AcceleratorCard(fake, 0, outside=Outside()))
    return pinned(found)


def test_a_pin_of_the_exact_size_is_given_back(linux: Machine) -> None:
    fake = Pins()
    check = check_of(fake, linux)
    assert (check.state, check.facts["pinned"], check.facts["unpinned"]) == ("ok", True, True)
    assert fake.sizes == [TRIED, -TRIED]
    assert TRIED & (TRIED - 1)  # no power of two
    assert TRIED <= 16 << 20


@pytest.mark.parametrize(
    ("fake", "state", "word"),
    [
        (Pins(refuse=True), "note", "refused"),
        (Pins(refuse=True, late=1), "note", "refused"),
        (Pins(late=1), "note", "not to be trusted"),
        (Pins(late=9), "broken", "poisons"),
        (Pins(stuck=True), "note", "not unpinned"),
        (Pins(dead=True), "unknown", "not tried"),
    ],
)
def test_each_way_to_fail_is_another_line(linux: Machine, fake: Pins, state: str, word: str) -> None:
    check = check_of(fake, linux)
    assert check.state == state
    assert word in check.value


def test_the_late_error_is_consumed_so_that_the_next_call_works(linux: Machine) -> None:
    fake = Pins(late=1)
    assert "invalid argument" in check_of(fake, linux).reason
    fake.probe(0)


def test_nothing_stays_pinned_after_an_error_that_came_late(linux: Machine) -> None:
    fake = Pins(late=1)
    check_of(fake, linux)
    assert sum(fake.sizes) == 0


def test_windows_charges_pinned_memory_to_the_card_and_the_page_says_so(windows: Machine) -> None:
    assert "charges" in check_of(FakeCuda(windows=True), windows).reason


def test_a_card_that_is_the_host_needs_no_pin(linux: Machine) -> None:
    assert pinned(Patient(linux.here, "cpu", card=HostCard())).state == "ok"
