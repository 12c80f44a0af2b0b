"""Cards: names people type, the arithmetic of what is free, and drivers that lie."""

from __future__ import annotations

import logging

import pytest
from fake_cuda import FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from mmswap.card import AcceleratorCard, HostCard, SimulatedCard, TorchBackend, open_card
from mmswap.card.backend import Properties
from mmswap.card.budget import accelerator_free, simulated_free
from mmswap.errors import OptionError

GIB = 1 << 30


def test_names_of_cards() -> None:
    fake = FakeCuda()
    assert isinstance(open_card("cpu"), HostCard)
    assert isinstance(open_card(" sim:16GiB@24GB/s "), SimulatedCard)
    assert open_card("auto", fake).spec == "cuda:0"
    assert open_card("cuda", fake).spec == "cuda:0"
    fake.devices *= 2
    assert open_card("cuda:1", fake).spec == "cuda:1"
    fake.devices = []
    host = open_card("auto", fake)
    assert (host.spec, host.choice, host.can_swap) == ("cpu", "torch sees no accelerator", False)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gpu", "is not a card"),
        ("", "is not a card"),
        ("cuda:", "is not a card"),
        ("cuda:-1", "is not a card"),
        ("cuda:3", "there are 1 accelerators"),
        ("sim", "write for example sim:16GiB"),
        ("sim:", "write for example sim:16GiB"),
        ("sim:lots", "is not a size"),
        ("sim:0", "Write the unit"),
        ("sim:1GiB@", "write for example sim:16GiB"),
        ("sim:1GiB@fast", "is not a link speed"),
    ],
)
def test_wrong_names_are_one_sentence(spec: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        open_card(spec, FakeCuda())


def test_no_accelerator_is_said() -> None:
    fake = FakeCuda()
    fake.devices = []
    with pytest.raises(OptionError, match="torch sees no accelerator here"):
        open_card("cuda", fake)


def test_the_integrated_one_is_not_chosen_and_the_choice_is_printed(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCuda()
    fake.devices = [
        Properties("gfx1036", 32 * GIB, True),
        Properties("gfx1100", 20 * GIB, False),
        Properties("gfx1101", 16 * GIB, False),
    ]
    with caplog.at_level(logging.INFO):
        card = open_card("auto", fake)
    assert (card.spec, card.name, card.total()) == ("cuda:1", "gfx1100", 20 * GIB)
    assert "cuda:0 gfx1036 with 32.0 GiB (integrated)" in card.choice
    assert card.choice in caplog.text
    fake.devices = fake.devices[:1]
    assert open_card("auto", fake).spec == "cuda:0"


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_free_is_the_drivers_plus_what_is_cached(total: int, free: int, allocated: int, cached: int, idle: int) -> None:
    reading = accelerator_free(
        total=total, driver=(free, total), reserved=allocated + cached + idle, allocated=allocated, idle=idle
    )
    if free <= total:
        assert (reading.bytes, reading.doubtful) == (free + cached, False)
    else:
        assert (reading.bytes, reading.doubtful) == (max(0, total - allocated - cached - idle) + cached, True)
    assert reading.reason


@pytest.mark.parametrize("answer", [(0, 0), (9 * GIB, 8 * GIB), (-1, GIB), RuntimeError("hipErrorNotSupported")])
def test_a_driver_that_lies_is_replaced_with_one_warning(
    answer: tuple[int, int] | RuntimeError, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeCuda(total=16 * GIB)

    def driver() -> tuple[int, int]:
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    fake.driver = driver
    held = fake.empty(3 * GIB, 0)  # pages that nobody touches
    card = AcceleratorCard(fake, 0)
    with caplog.at_level(logging.WARNING):
        assert card.free().bytes == 13 * GIB
        assert card.free().bytes == 13 * GIB
    assert len(caplog.records) == 1
    assert "cannot be used" in caplog.text
    assert held.numel() == 3 * GIB


def test_the_two_numbers_of_the_driver_are_taken_as_free_and_total() -> None:
    fake = FakeCuda()
    fake.driver = lambda: (2 * GIB, 16 * GIB)
    reading = AcceleratorCard(fake, 0).free()
    assert reading.bytes == 2 * GIB
    assert "2.0 GiB free" in reading.reason


def test_the_ledger_of_a_simulated_card() -> None:
    card = SimulatedCard("sim:1000@2KB/s")
    assert (card.total(), card.link_rate(), card.can_swap) == (1000, 2000, True)
    card.claim("tower weights", 300)
    card.claim("kv cache", 100)
    card.claim("kv cache", 200)
    assert card.free().bytes == 500
    assert card.free().reason.endswith("1000 B, of which are claimed: tower weights 300 B, kv cache 200 B")
    card.release("kv cache")
    card.release("never booked")
    assert card.free().bytes == 700
    card.claim("language model", 701)
    assert card.free().bytes == 0
    assert "over-full by 1 bytes" in card.free().reason
    with pytest.raises(ValueError, match="negative"):
        card.claim("x", -1)
    assert simulated_free(5, {}).bytes == 5


def test_the_host_says_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    card = HostCard()
    assert 0 < card.free().bytes <= card.total()
    card.claim("ignored", 5)
    card.release("ignored")
    assert card.link_rate() is None
    monkeypatch.setattr("mmswap.card.host._meminfo", lambda field: 0)
    assert 0 < card.free().bytes <= card.total()
    monkeypatch.setattr("mmswap.card.host._sysconf", lambda name: 0)
    assert card.free().doubtful


def test_torch_backend_counts_what_there_is() -> None:
    import torch

    assert TorchBackend().count() == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
