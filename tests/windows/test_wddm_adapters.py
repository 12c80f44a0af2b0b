"""Which adapter is device i: every route, in order, and what must not be taken for the device."""

from __future__ import annotations

import pytest
from windows.vtables import Vtables
from windows.world import AMD, GIB, INTEL, MIB, MICROSOFT, NON_LOCAL, SIZE, XT, World

from mmswap.card.wddm import Budget, Wddm

FIRST, SECOND, INSIDE, BASIC = 0x1D3F4, 0x20_000000AA, 0x777, 0xEE
REMOTE, SOFTWARE = 1, 2
NO_LUID = ("hipDeviceGetLuid", "hipGetDevicePropertiesR0600")
NO_PCI = ("hipDeviceGetPCIBusId",)
BUDGETS = {FIRST: 11 * GIB, SECOND: 12 * GIB, INSIDE: 300 * MIB, BASIC: 1 * GIB}


def twins(windows: World) -> None:
    """Two cards of one name, a graphics core inside the processor, Windows' software adapter; HIP counts backwards."""
    windows.card(FIRST, pci=(3, 0, 0))
    windows.card(SECOND, pci=(7, 0, 0))
    windows.card(INSIDE, name="AMD Radeon(TM) Graphics", dedicated=512 * MIB, pci=(0x11, 0, 0))
    windows.card(BASIC, name="Microsoft Basic Render Driver", vendor=MICROSOFT, dedicated=0, flags=SOFTWARE)
    for luid, budget in BUDGETS.items():
        windows.memory(luid, budget, budget // 4)
    windows.device(SECOND, pci="0000:07:00.0")
    windows.device(FIRST, pci="0000:03:00.0")
    windows.device(INSIDE, name="AMD Radeon(TM) Graphics", pci="0000:11:00.0")


def budget_of(wddm: Wddm) -> int | str:
    """Closes it as well."""
    found = wddm.memory()
    wddm.close()
    return found.budget if isinstance(found, Budget) else found


@pytest.mark.parametrize(
    ("failing", "route"),
    [
        ((), f"'{XT}', found by the LUID of hipDeviceGetLuid"),
        (NO_LUID[:1], f"'{XT}', found by the LUID of hipGetDevicePropertiesR0600"),
        (NO_LUID, f"'{XT}', found by its place on the PCI bus"),
    ],
)
def test_each_route_finds_the_right_twin(windows: World, failing: tuple[str, ...], route: str) -> None:
    twins(windows)
    windows.fail(*failing)
    for ordinal, luid in enumerate((SECOND, FIRST)):
        wddm = windows.open(ordinal=ordinal)
        assert wddm.route == route
        assert budget_of(wddm) == BUDGETS[luid]


def test_twins_that_nothing_tells_apart_count_at_their_worst(windows: World) -> None:
    twins(windows)
    windows.fail(*NO_LUID, *NO_PCI)
    wddm = windows.open()
    assert wddm.route == "one of 2 adapters of the same maker, size and name, so the worst of them counts"
    assert budget_of(wddm) == 11 * GIB
    windows.memory(SECOND, 10 * GIB)
    assert budget_of(windows.open(ordinal=1)) == 10 * GIB


def test_twins_in_strict_mode_count_by_what_is_left(windows: World) -> None:
    twins(windows)
    windows.fail(*NO_LUID, *NO_PCI)
    windows.memory(FIRST, 11 * GIB, 1 * GIB)
    windows.memory(SECOND, 12 * GIB, 9 * GIB)
    wddm = windows.open(environ={"MMSWAP_WDDM_BUDGET": "strict"})
    found = wddm.memory()
    assert isinstance(found, Budget)
    assert (found.budget, found.usage) == (12 * GIB, 9 * GIB)
    wddm.close()


def test_counters_of_twins_are_the_fuller_card_and_the_sum_of_ours(windows: World) -> None:
    twins(windows)
    windows.fail(*NO_LUID, *NO_PCI)
    windows.row(FIRST, dedicated=3 * GIB)
    windows.row(SECOND, dedicated=5 * GIB)
    windows.row(INSIDE, dedicated=9 * GIB)
    for luid, usage in ((FIRST, 2), (SECOND, 3), (INSIDE, 50)):
        windows.memory(luid, 32 * GIB, usage, group=NON_LOCAL)
    wddm = windows.open()
    assert (wddm.adapter_used(), wddm.process_shared()) == (5 * GIB, 5)
    wddm.close()


def test_the_name_tells_cards_of_one_size_apart(windows: World) -> None:
    windows.card(FIRST, name="AMD Radeon RX 9070 XT")
    windows.card(SECOND)
    windows.memory(SECOND, 12 * GIB)
    windows.device(0)
    wddm = windows.open()
    assert wddm.route == f"'{XT}', found by maker, size and name"
    assert budget_of(wddm) == 12 * GIB


def test_the_size_alone_is_enough_for_a_single_card(windows: World) -> None:
    twins(windows)
    windows.forget_cards()
    windows.card(FIRST, name="Radeon RX 7900 XT (renamed)", dedicated=SIZE - 300 * MIB)
    windows.card(INSIDE, name="AMD Radeon(TM) Graphics", dedicated=512 * MIB)
    windows.device(0)
    wddm = windows.open(ordinal=3)
    assert wddm.route == "'Radeon RX 7900 XT (renamed)', found by maker and size"
    assert budget_of(wddm) == SIZE - 300 * MIB


def test_an_adapter_that_is_listed_twice_is_one(windows: World) -> None:
    twins(windows)
    windows.forget_cards()
    for _ in range(2):
        windows.card(FIRST, pci=(7, 0, 0))
    windows.fail(*NO_LUID)
    wddm = windows.open()
    assert wddm.route == f"'{XT}', found by its place on the PCI bus"
    assert budget_of(wddm) == SIZE
    windows.fail(*NO_LUID, *NO_PCI)
    wddm = windows.open()
    assert wddm.route == f"'{XT}', found by maker, size and name"
    assert budget_of(wddm) == SIZE


@pytest.mark.parametrize(
    "other",
    [{"vendor": INTEL}, {"vendor": MICROSOFT, "flags": SOFTWARE}, {"flags": SOFTWARE}, {"flags": REMOTE}],
)
def test_other_makers_and_software_never_stand_for_the_card(windows: World, other: dict[str, int]) -> None:
    windows.card(FIRST, **other)
    windows.device(0)
    answer = budget_of(windows.open())
    assert isinstance(answer, str)
    assert answer.endswith("no adapter of that maker has about 16.0 GiB")


def test_a_moved_layout_of_the_properties_is_noticed_by_the_name(windows: World) -> None:
    windows.card(FIRST, pci=(3, 0, 0))
    windows.card(SECOND, pci=(7, 0, 0))
    windows.memory(SECOND, 12 * GIB)
    windows.device(FIRST, name="another name", pci="0000:07:00.0")
    windows.fail("hipDeviceGetLuid")
    assert budget_of(windows.open()) == 12 * GIB


def test_a_luid_that_dxgi_does_not_know_leads_to_the_next_route(windows: World) -> None:
    windows.card(SECOND, pci=(7, 0, 0))
    windows.device(0x123456789, pci="07:00.0")
    wddm = windows.open()
    assert wddm.route == f"'{XT}', found by its place on the PCI bus"
    assert budget_of(wddm) == SIZE


def test_a_luid_of_another_maker_is_not_believed(windows: World) -> None:
    windows.card(FIRST, name="Intel Arc", vendor=INTEL, pci=(3, 0, 0))
    windows.card(SECOND, pci=(7, 0, 0))
    windows.memory(SECOND, 12 * GIB)
    windows.device(FIRST, pci="0000:07:00.0")
    assert budget_of(windows.open()) == 12 * GIB


def test_torchs_own_word_for_the_bus_goes_first(windows: World) -> None:
    twins(windows)
    windows.fail(*NO_LUID)
    assert budget_of(windows.open(pci="0000:03:00.0")) == 11 * GIB


def test_an_unreadable_place_falls_back_to_the_size(windows: World) -> None:
    twins(windows)
    windows.fail(*NO_LUID)
    for pci in ("", "nonsense", "0000:3f:00.0"):
        assert budget_of(windows.open(pci=pci)) == 11 * GIB


def test_linked_cards_are_not_corrected(windows: World) -> None:
    windows.card(FIRST)
    windows.device(FIRST, nodes=0b11)
    answer = budget_of(windows.open())
    assert answer == "unknown, because hipDeviceGetLuid says that the device is several linked cards"


def test_one_node_of_a_linked_adapter_is_asked_for_itself(windows: World) -> None:
    windows.card(FIRST)
    windows.memory(FIRST, 9 * GIB, 1, node=1)
    windows.memory(FIRST, 20 * GIB, 2, node=1, group=NON_LOCAL)
    windows.row(FIRST, dedicated=7 * GIB, phys=1)
    windows.row(FIRST, dedicated=3 * GIB, phys=0)
    windows.device(FIRST, nodes=0b10)
    wddm = windows.open()
    assert wddm.adapter_used() == 7 * GIB
    assert budget_of(wddm) == 9 * GIB


def test_an_integrated_card_is_not_corrected(windows: World) -> None:
    windows.card(INSIDE, name="AMD Radeon 8060S Graphics", dedicated=SIZE)
    windows.device(INSIDE, name="AMD Radeon 8060S Graphics")
    answer = budget_of(windows.open(name="AMD Radeon 8060S Graphics", integrated=True))
    assert answer == "unknown, because the device is part of the processor and its memory is the system's"


@pytest.mark.parametrize("failing", [(), NO_LUID])
def test_a_carve_out_is_not_the_card_and_no_twin_takes_its_place(windows: World, failing: tuple[str, ...]) -> None:
    windows.card(INSIDE, name="AMD Radeon 8060S Graphics", dedicated=512 * MIB, pci=(0x11, 0, 0))
    windows.card(FIRST, name="AMD Radeon RX 7900 XT", pci=(3, 0, 0))
    windows.device(INSIDE, name="AMD Radeon 8060S Graphics", pci="0000:11:00.0")
    windows.fail(*failing)
    answer = budget_of(windows.open(name="AMD Radeon 8060S Graphics", total=SIZE))
    assert isinstance(answer, str)
    assert "has 512.0 MiB of its own and the driver speaks of 16.0 GiB" in answer


@pytest.mark.parametrize("total", [0, -1, 1, 4 * SIZE])
def test_an_absurd_total_never_finds_a_card(windows: World, total: int) -> None:
    twins(windows)
    windows.fail(*NO_LUID, *NO_PCI)
    assert isinstance(budget_of(windows.open(total=total)), str)


def test_a_name_beyond_ascii_arrives_whole() -> None:
    windows = Vtables()
    windows.card(FIRST, name="Grafikkarte Ж 显卡", vendor=AMD)
    windows.device(FIRST)
    wddm = windows.open()
    assert wddm.route.startswith("'Grafikkarte Ж 显卡'")
    wddm.close()
