"""Cards: names people type, the arithmetic of what is free, and drivers that lie."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from fake_cuda import FakeCuda

from mmswap.card import AcceleratorCard, HostCard, SimulatedCard, TorchBackend, open_card
from mmswap.card.backend import Properties
from mmswap.card.budget import simulated_free
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


def test_a_small_integrated_card_that_is_device_0_is_not_chosen_even_if_torch_does_not_flag_it() -> None:
    """The processor's own graphics with 2 GiB comes first, or shows the whole host memory as its own."""
    for size in (2 * GIB, 64 * GIB):
        fake = FakeCuda(hip=True)
        fake.devices = [
            Properties("AMD Radeon(TM) Graphics", size, False, "gfx1036"),
            Properties("AMD Radeon RX 7900 XT", 20 * GIB, False, "gfx1100"),
        ]
        card = open_card("auto", fake)
        assert (card.spec, card.total()) == ("cuda:1", 20 * GIB)
        assert "(integrated), cuda:1 AMD Radeon RX 7900 XT with 20.0 GiB" in card.choice
        assert card.choice.startswith("it is the largest that is no part of the processor, of cuda:0 AMD Radeon(TM)")


NO_CODE = RuntimeError("HIP error: device kernel image is invalid\nHIP kernel errors might be asynchronously reported")


@pytest.mark.parametrize("arch", ["gfx1151", "gfx1103", "gfx90a", ""])
def test_a_card_that_is_listed_but_runs_no_kernel(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(hip=True)
    fake.devices = [Properties("AMD Radeon", 16 * GIB, False, arch)]
    fake.broken, fake.architectures = {0: NO_CODE}, ("gfx1100", "gfx1201")
    for spec in ("cuda", "cuda:0"):
        with pytest.raises(OptionError) as caught:
            open_card(spec, fake)
        sentence = str(caught.value)
        assert "cannot run a kernel (HIP error: device kernel image is invalid)" in sentence
        assert f"({arch or 'an architecture that is not told'})" in sentence
        assert "this torch is built for gfx1100, gfx1201" in sentence
        assert f"install a ROCm wheel of torch with code for {arch or 'this card'}" in sentence
        assert "--card cpu" in sentence
        assert "\n" not in sentence
    fake.windows = True
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    with pytest.raises(OptionError, match="HSA_OVERRIDE_GFX_VERSION does nothing on Windows"):
        open_card("cuda", fake)


def test_auto_takes_the_processor_then_and_announces_it(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCuda()
    fake.devices = [Properties("GeForce", 16 * GIB, False, "sm_120")]
    fake.broken = {0: RuntimeError("CUDA error: no kernel image is available for execution on the device")}
    with caplog.at_level(logging.WARNING):
        card = open_card("auto", fake)
    assert card.spec == "cpu"
    assert "install a CUDA wheel of torch with code for sm_120" in card.choice
    assert "The processor is used instead" in caplog.text


def test_the_next_card_is_taken_when_the_best_one_runs_no_kernel(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeCuda(hip=True)
    fake.devices = [
        Properties("old", 8 * GIB, False, "gfx1030"),
        Properties("new", 32 * GIB, False, "gfx1201"),
        Properties("gone", 0, False),
    ]
    fake.broken = {1: NO_CODE, 2: NO_CODE}
    card = open_card("auto", fake)
    assert (card.spec, card.name) == ("cuda:0", "old")
    assert "largest that works" in card.choice
    assert "cuda:1 new with 32.0 GiB (runs no kernel)" in card.choice
    assert "cuda:1, new (gfx1201), is listed but cannot run a kernel" in caplog.text


def test_a_device_that_cannot_even_be_asked_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda()
    fake.devices *= 2

    def properties(index: int) -> Properties:
        if index == 0:
            raise RuntimeError("hipErrorInvalidDevice")
        return Properties("good", 8 * GIB, False)

    monkeypatch.setattr(fake, "properties", properties)
    assert open_card("auto", fake).spec == "cuda:1"
    with pytest.raises(OptionError, match="cuda:0 cannot be asked what it is"):
        open_card("cuda:0", fake)
    fake.devices = fake.devices[:1]
    assert "cannot be asked what it is" in open_card("auto", fake).choice


def test_a_patched_torch_without_kernels_of_its_own_can_stand_in_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if torch.backends.cuda.is_built():
        pytest.skip("this torch has kernels for devices, so that it tries one on them")
    devices = [
        SimpleNamespace(name="AMD Radeon Graphics", total_memory=2 * GIB, gcnArchName="gfx1036", is_integrated=1),
        SimpleNamespace(name="AMD Radeon RX 7900 XT", total_memory=20 * GIB, gcnArchName="gfx1100", is_integrated=0),
    ]
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: devices[index])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (7 * GIB, 20 * GIB))
    card = open_card("auto")
    assert (card.spec, card.total(), card.free().bytes) == ("cuda:1", 20 * GIB, 7 * GIB)

    def raises(index: int) -> tuple[int, int]:
        raise RuntimeError("hipErrorNotSupported")

    monkeypatch.setattr(torch.cuda, "mem_get_info", raises)
    assert (card.free().bytes, card.free().doubtful) == (20 * GIB, True)


def test_a_cap_is_known_to_every_kind_of_card(caplog: pytest.LogCaptureFixture) -> None:
    assert open_card("sim:16GiB", vram_limit=6 * GIB).free().bytes == 6 * GIB
    assert open_card("cpu", vram_limit=6 * GIB).spec == "cpu"
    assert "--vram-limit 6.0 GiB limits a card's memory; the processor has none" in caplog.text


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
    assert card.free().over == 1
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
