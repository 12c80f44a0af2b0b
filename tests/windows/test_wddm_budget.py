"""What Windows' budget comes to: the figures of a real card, the modes, what is logged, where nothing happens."""

from __future__ import annotations

import logging
import os
import sys

import pytest
from windows.world import GIB, MIB, NON_LOCAL, NVIDIA, SIZE, XT, World

from mmswap.card.budget import driver_says, true_free, wddm_bounds, wddm_lowers
from mmswap.card.wddm import Budget, open_wddm

LUID = 0x2_0001D3F4
# MiB that a process held on a card of 16368 MiB, and what it then read (a user's measurement, facts of the design).
# Held: 0, 10240, 11264, 14336, 16128, and 0 again after everything was freed.
PROBE = {
    "nothing held": (16227, 15569, 141),
    "10240 held": (5974, 15569, 10394),
    "11264 held": (4950, 14515, 11418),
    "14336 held": (1878, 14543, 14490),
    "16128 held": (86, 14538, 16282),
    "all freed": (16214, 15569, 1946),
}
FREE = {
    "nothing held": (15428, 15428 - 973.0625),
    "10240 held": (5175, 5175 - 973.0625),
    "11264 held": (3097, 3097 - 907.1875),
    "14336 held": (53, 0),
    "16128 held": (0, 0),
    "all freed": (15415, 13623 - 973.0625),
}


def usual(windows: World) -> None:
    windows.card(LUID)
    windows.device(LUID)


@pytest.mark.parametrize("column", PROBE)
def test_the_probe_table(windows: World, column: str) -> None:
    usual(windows)
    free, budget, usage = (figure * MIB for figure in PROBE[column])
    windows.memory(LUID, budget, usage)
    wddm = windows.open()
    found = wddm.memory()
    wddm.close()
    assert isinstance(found, Budget)
    assert (found.budget, found.usage) == (budget, usage)
    driver = driver_says((free, SIZE), total=SIZE)
    lowered = true_free([driver, wddm_lowers(driver, total=SIZE, budget=found.budget)])
    bounded = true_free([wddm_bounds(driver, budget=found.budget, usage=found.usage)])
    assert (lowered.bytes, bounded.bytes) == tuple(int(figure * MIB) for figure in FREE[column])


def test_every_figure_comes_from_its_own_field(windows: World) -> None:
    usual(windows)
    windows.memory(LUID, 9 * GIB + 7, 5 * GIB + 3)
    windows.memory(LUID, 31 * GIB + 5, 2 * GIB + 1, group=NON_LOCAL)
    windows.row(LUID, dedicated=8 * GIB, shared=1)
    wddm = windows.open()
    assert wddm.memory() == Budget(9 * GIB + 7, 5 * GIB + 3, 3 * GIB - 3, 31 * GIB + 5, 2 * GIB + 1)
    wddm.close()


def test_a_budget_is_read_anew_at_every_question(windows: World) -> None:
    usual(windows)
    wddm = windows.open()
    seen = []
    for held in range(0, 15360, 1024):
        windows.memory(LUID, (15569 - held // 15) * MIB, held * MIB)
        found = wddm.memory()
        assert isinstance(found, Budget)
        seen.append((found.budget, found.usage))
    wddm.close()
    assert seen == [((15569 - held // 15) * MIB, held * MIB) for held in range(0, 15360, 1024)]


def test_a_budget_above_the_card_is_passed_on(windows: World) -> None:
    usual(windows)
    windows.memory(LUID, 20 * GIB, 0)
    wddm = windows.open()
    found = wddm.memory()
    wddm.close()
    assert isinstance(found, Budget)
    driver = driver_says((5 * GIB, SIZE), total=SIZE)
    assert wddm_lowers(driver, total=SIZE, budget=found.budget).bytes == 5 * GIB


@pytest.mark.parametrize(("budget", "usage"), [(0, 0), (0, GIB), (15 * GIB, 1 << 63), (15 * GIB, (1 << 64) - 1)])
def test_senseless_figures_are_unknown(windows: World, budget: int, usage: int) -> None:
    usual(windows)
    windows.memory(LUID, budget, usage)
    wddm = windows.open()
    found = wddm.memory()
    wddm.close()
    assert isinstance(found, str)
    assert found.startswith("unknown, because Windows")


@pytest.mark.parametrize(
    ("text", "hip", "cuda"),
    [
        (None, "default", None),
        ("", "default", None),
        ("1", "default", "default"),
        (" ON ", "default", "default"),
        ("strict", "strict", "strict"),
        ("Strict", "strict", "strict"),
        ("0", None, None),
        ("off", None, None),
        ("nonsense", "default", None),
    ],
)
def test_modes(windows: World, caplog: pytest.LogCaptureFixture, text: str, hip: str | None, cuda: str | None) -> None:
    environ = {} if text is None else {"MMSWAP_WDDM_BUDGET": text}
    given = {"ordinal": 0, "name": XT, "total": SIZE, "environ": environ, "libraries": windows.libraries()}
    opened = [open_wddm(kind="hip", **given), open_wddm(kind="cuda", **given)]
    assert [None if one is None else one.mode for one in opened] == [hip, cuda]
    said = [record.message for record in caplog.records]
    assert said == ["MMSWAP_WDDM_BUDGET=nonsense is not known: use 1, strict or 0; it is taken as not set"] * len(said)
    assert len(said) == (2 if text == "nonsense" else 0)
    assert windows.held()["live"] == 0, "opened before it was asked"


@pytest.mark.skipif(sys.platform == "win32", reason="there it is on")
@pytest.mark.parametrize("text", ["1", "strict", "nonsense", "0"])
def test_nothing_happens_on_other_systems(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with caplog.at_level(logging.DEBUG):
        for kind in ("hip", "cuda"):
            environ = {"MMSWAP_WDDM_BUDGET": text}
            assert open_wddm(kind=kind, ordinal=0, name=XT, total=SIZE, environ=environ) is None
    assert caplog.records == []


def test_one_line_at_the_first_question(windows: World, caplog: pytest.LogCaptureFixture) -> None:
    usual(windows)
    windows.memory(LUID, 15569 * MIB, 141 * MIB)
    with caplog.at_level(logging.INFO):
        wddm = windows.open()
        assert caplog.messages == []
        for _ in range(3):
            wddm.memory()
        windows.fail("QueryVideoMemoryInfo")
        wddm.memory()
        wddm.close()
    assert caplog.messages == [
        "WDDM: Windows budgets 15.2 GiB of 16.0 GiB to this process on 'AMD Radeon RX 7900 XT', found by the LUID of "
        "hipDeviceGetLuid; MMSWAP_WDDM_BUDGET=0 turns this off"
    ]


def test_one_line_says_why_there_is_no_budget(windows: World, caplog: pytest.LogCaptureFixture) -> None:
    windows.fail("CreateDXGIFactory1")
    wddm = windows.open()
    reasons = {wddm.memory() for _ in range(3)}
    wddm.close()
    assert reasons == {"unknown, because CreateDXGIFactory1 failed with 0x80004005"}
    assert caplog.messages == [
        "WDDM: the budget is unknown, because CreateDXGIFactory1 failed with 0x80004005; the driver's figure stands; "
        "MMSWAP_WDDM_BUDGET=0 turns this off"
    ]


def test_what_everybody_uses(windows: World) -> None:
    usual(windows)
    windows.row(LUID, dedicated=9 * GIB, shared=3 * GIB)
    windows.row(LUID + 1, dedicated=15 * GIB)
    windows.row(LUID, phys=1, dedicated=GIB)
    windows.row(LUID, pid=4, dedicated=2 * GIB)
    wddm = windows.open()
    assert wddm.adapter_used() == 9 * GIB
    windows.forget_rows()
    windows.row(LUID, dedicated=10 * GIB)
    assert wddm.adapter_used() == 10 * GIB
    windows.forget_rows()
    assert wddm.adapter_used() == "unknown, because Windows' counters have no row for this adapter"
    wddm.close()


def test_shared_usage_is_this_process_alone(windows: World) -> None:
    usual(windows)
    windows.memory(LUID, 32 * GIB, 5, group=NON_LOCAL)
    windows.row(LUID, pid=os.getpid() + 1, shared=7 * GIB)
    windows.row(LUID + 1, pid=os.getpid(), shared=6 * GIB)
    windows.row(LUID, pid=os.getpid(), shared=300 * MIB, dedicated=1)
    wddm = windows.open()
    assert wddm.process_shared() == 300 * MIB
    wddm.close()


def test_shared_usage_without_counters_is_the_non_local_usage_and_stays_it(windows: World) -> None:
    usual(windows)
    windows.memory(LUID, 32 * GIB, 5 * MIB, group=NON_LOCAL)
    windows.fail("PdhAddEnglishCounterW")
    wddm = windows.open()
    assert wddm.process_shared() == 5 * MIB
    windows.fail()
    windows.row(LUID, pid=os.getpid(), shared=300 * MIB)
    windows.memory(LUID, 32 * GIB, 6 * MIB, group=NON_LOCAL)
    assert wddm.process_shared() == 6 * MIB, "a baseline of one source says nothing of another"
    wddm.close()


def test_counters_that_fail_later_are_unknown_and_not_another_source(windows: World) -> None:
    usual(windows)
    windows.row(LUID, pid=os.getpid(), shared=300 * MIB)
    wddm = windows.open()
    assert wddm.process_shared() == 300 * MIB
    windows.fail("PdhCollectQueryData")
    assert isinstance(wddm.process_shared(), str)
    windows.fail()
    assert wddm.process_shared() == 300 * MIB
    wddm.close()


def test_cuda_asks_by_its_own_calls(windows: World) -> None:
    name = "NVIDIA GeForce RTX 3070"
    windows.card(0x77, name=name, vendor=NVIDIA, dedicated=8018 * MIB)
    windows.card(0x78, name=name, vendor=NVIDIA, dedicated=8018 * MIB)
    windows.memory(0x78, 7600 * MIB, 140 * MIB)
    windows.device(0x77, name=name)
    windows.device(0x78, name=name)
    windows.fail("hipDeviceGetLuid", "hipGetDevicePropertiesR0600", "hipDeviceGetPCIBusId")
    asked = {"MMSWAP_WDDM_BUDGET": "1"}
    wddm = windows.open(kind="cuda", ordinal=1, name=name, total=8191 * MIB, environ=asked)
    found = wddm.memory()
    assert isinstance(found, Budget)
    assert (found.budget, found.usage) == (7600 * MIB, 140 * MIB)
    assert wddm.route == f"'{name}', found by the LUID of cuDeviceGetLuid"
    wddm.close()
