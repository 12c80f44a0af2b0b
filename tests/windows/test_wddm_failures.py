"""Whatever fails, no exception leaves, nothing is kept, the reason is said, and the next question is asked afresh."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest
from windows.world import GIB, MIB, SIZE, XT, World

from mmswap.card.wddm import Budget, Wddm, open_wddm
from mmswap.card.wddm_libraries import Libraries, Missing

LUID = 0x1D3F4
NO_SESSION = ("CreateDXGIFactory1", "GetDesc1", "QueryInterface")  # the last two are needed on every route
ROUTES = ("hipDeviceGetLuid", "hipGetDevicePropertiesR0600", "hipDeviceGetPCIBusId")
DXGI = ("EnumAdapterByLuid", "EnumAdapters1", "GetDesc1", "QueryInterface")
KMT = ("D3DKMTOpenAdapterFromLuid", "D3DKMTQueryAdapterInfo")
PDH = ("PdhOpenQueryW", "PdhAddEnglishCounterW", "PdhCollectQueryData", "PdhGetFormattedCounterArrayW")
EVENTS = ("Register", "CreateEventW", "WaitForMultipleObjects")


def usual(windows: World) -> Wddm:
    windows.card(LUID, pci=(3, 0, 0))
    windows.device(LUID, pci="0000:03:00.0")
    windows.row(LUID, dedicated=5 * GIB)
    windows.row(LUID, pid=os.getpid(), shared=7)
    return windows.open()


def everything(wddm: Wddm) -> list[object]:
    return [wddm.memory(), wddm.adapter_used(), wddm.process_shared(), wddm.route, wddm.changed()]


@pytest.mark.parametrize("call", [*DXGI, *ROUTES, *KMT, *PDH, *EVENTS, "CreateDXGIFactory1", "QueryVideoMemoryInfo"])
@pytest.mark.parametrize("when", ["from the start", "later"])
def test_each_call_failing_in_turn(windows: World, call: str, when: str) -> None:
    wddm = usual(windows)
    if when == "later":
        everything(wddm)
        windows.outdate()
    windows.fail(call)
    memory, used, shared, *_ = everything(wddm)
    chosen = when == "later" and call in PDH  # what it was read from first stays what it is read from
    assert isinstance(memory, str if call in (*NO_SESSION, "QueryVideoMemoryInfo") else Budget)
    assert isinstance(used, str if call in (*NO_SESSION, *PDH) else int)
    assert isinstance(shared, str if call in NO_SESSION or chosen else int)
    windows.fail()
    memory, used, *_ = everything(wddm)
    assert isinstance(memory, Budget)
    assert (memory.budget, used) == (SIZE, 5 * GIB)
    wddm.close()


@pytest.mark.parametrize("pair", list(itertools.combinations([*DXGI, *ROUTES, *KMT], 2)), ids="+".join)
def test_two_calls_failing_together(windows: World, pair: tuple[str, str]) -> None:
    wddm = usual(windows)
    windows.fail(*pair)
    memory = wddm.memory()
    assert isinstance(memory, Budget) or memory.startswith("unknown, because ")
    wddm.close()


def test_a_windows_that_says_nothing_of_the_systems_memory(windows: World) -> None:
    wddm = usual(windows)
    windows.forget_rows()
    windows.memory(LUID, 9 * GIB, 3 * GIB)
    windows.fail("NonLocal")
    assert wddm.memory() == Budget(9 * GIB, 3 * GIB, None, None, None)
    assert wddm.process_shared() == "unknown, because QueryVideoMemoryInfo failed with 0x80004005"
    wddm.close()


def test_the_reason_names_every_route(windows: World) -> None:
    windows.card(LUID, dedicated=8 * GIB)
    wddm = windows.open()
    answer = wddm.memory()
    wddm.close()
    assert isinstance(answer, str)
    assert answer.startswith("unknown, because hipDeviceGetLuid failed with 0x00000")
    for part in ("hipGetDevicePropertiesR0600 failed", "BusId failed", "no adapter of that maker has about 16.0 GiB"):
        assert part in answer


def test_an_old_windows_refuses_the_factory(windows: World) -> None:
    windows.old(True)
    wddm = usual(windows)
    assert wddm.memory() == "unknown, because CreateDXGIFactory1 failed with 0x80004002"
    windows.old(False)
    assert isinstance(wddm.memory(), Budget)
    wddm.close()


def test_rows_that_are_not_valid_do_not_count(windows: World) -> None:
    windows.card(LUID)
    windows.device(LUID)
    windows.row(LUID, dedicated=5 * GIB, status=0xC0000BC6)  # PDH_INVALID_DATA
    wddm = windows.open()
    assert isinstance(wddm.adapter_used(), str)
    windows.row(LUID, dedicated=(1 << 64) - 1)  # below 0
    assert isinstance(wddm.adapter_used(), str)
    windows.row(LUID, dedicated=6 * GIB, status=1)  # PDH_CSTATUS_NEW_DATA
    assert wddm.adapter_used() == 6 * GIB
    wddm.close()


def test_rows_that_come_while_they_are_asked_for(windows: World) -> None:
    wddm = usual(windows)
    windows.growing(3)
    assert wddm.adapter_used() == 5 * GIB
    windows.growing(1000)
    assert wddm.adapter_used() == "unknown, because PdhGetFormattedCounterArrayW failed with 0x800007D2"
    windows.growing(0)
    wddm.close()


@pytest.mark.parametrize("lacking", ["dxgi", "gdi", "pdh", "kernel", "runtime"])
def test_each_library_missing(windows: World, lacking: str) -> None:
    usual(windows)
    have = windows.libraries()
    for stand_in in (Missing("nothing.dll cannot be loaded"), SimpleNamespace(), None):
        parts = {name: getattr(have, name) for name in Libraries.__dataclass_fields__} | {lacking: stand_in}
        wddm = windows.open(libraries=Libraries(**parts))
        memory, used, *_ = everything(wddm)
        assert isinstance(memory, str if lacking == "dxgi" else Budget)
        assert isinstance(used, str if lacking in ("dxgi", "pdh") else int)
        wddm.close()


def test_a_library_that_crashes_is_one_more_reason() -> None:
    class Crashing:
        def __getattr__(self, name: str) -> object:
            raise OSError("exception: access violation reading 0x0000000000000010")

    libraries = Libraries(*(Crashing() for _ in range(5)))
    wddm = open_wddm(kind="hip", ordinal=0, name=XT, total=SIZE, environ={}, libraries=libraries)
    assert wddm is not None
    assert wddm.memory() == "unknown, because exception: access violation reading 0x0000000000000010"
    assert isinstance(wddm.adapter_used(), str)
    assert isinstance(wddm.process_shared(), str)
    wddm.close()


def test_a_runtime_that_crashes_leaves_the_other_routes(windows: World) -> None:
    class Crashing:
        def __getattr__(self, name: str) -> object:
            raise OSError("exception: access violation reading 0x0000000000000010")

    usual(windows)
    have = windows.libraries()
    wddm = windows.open(libraries=Libraries(have.dxgi, have.gdi, have.pdh, have.kernel, Crashing()))
    assert isinstance(wddm.memory(), Budget)
    assert wddm.route == f"'{XT}', found by maker, size and name"
    wddm.close()


def test_a_watch_that_cannot_wait_leaves_the_budget_alone(windows: World) -> None:
    windows.fail("WaitForMultipleObjects")
    wddm = usual(windows)
    windows.fail("WaitForMultipleObjects")
    windows.memory(LUID, 300 * MIB)
    found = wddm.memory()
    assert isinstance(found, Budget)
    assert found.budget == 300 * MIB
    wddm.close()
