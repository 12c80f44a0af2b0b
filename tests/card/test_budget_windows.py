"""A ROCm card on Windows as a whole: a stand-in for torch, the real WDDM code, DXGI and PDH made of callbacks."""

from __future__ import annotations

import pytest
from fake_cuda import FakeCuda
from windows.vtables import Vtables
from windows.world import MIB, SIZE

from mmswap.card import AcceleratorCard
from mmswap.card.outside import Outside

LUID = 0x2_0001D3F4


@pytest.fixture
def world() -> Vtables:
    found = Vtables()
    found.card(LUID)
    found.device(LUID)
    return found


def test_the_budget_falls_as_the_card_fills_and_every_reading_sees_it(world: Vtables) -> None:
    fake = FakeCuda(total=SIZE, windows=True, hip=True)
    fake.driver = lambda: (SIZE - 141 * MIB - fake.reserved(0), SIZE)
    wddm = world.open()
    card = AcceleratorCard(fake, 0, outside=Outside(wddm=wddm))
    world.memory(LUID, 15569 * MIB, 141 * MIB)
    assert card.free().bytes == 15428 * MIB
    with card.placed("KV cache", 11264 * MIB) as fits:
        assert fits
        world.memory(LUID, 14515 * MIB, 11405 * MIB)
        assert card.free().bytes == (14515 - 11405) * MIB
        world.memory(LUID, 11000 * MIB, 11405 * MIB)
        assert (card.free().bytes, card.free().over) == (0, 405 * MIB)
    world.fail("QueryVideoMemoryInfo")
    assert card.free().bytes == SIZE - 141 * MIB
    assert [source.bytes for source in card.sources() if source.name == "WDDM"] == [None]
    wddm.close()


def test_other_processes_and_what_spilled_come_from_the_counters(world: Vtables) -> None:
    fake = FakeCuda(total=SIZE, windows=True, hip=True)
    fake.driver = lambda: (SIZE - 141 * MIB, SIZE)
    world.memory(LUID, 15569 * MIB, 141 * MIB)
    world.row(LUID, dedicated=(141 + 5000) * MIB)
    wddm = world.open()
    card = AcceleratorCard(fake, 0, outside=Outside(wddm=wddm))
    assert card.free().bytes == SIZE - 5141 * MIB
    assert card.free().reason.startswith("PDH says that of 16.0 GiB all processes use 5.0 GiB")
    assert card.spilled().how == "Windows' shared GPU memory"
    wddm.close()
