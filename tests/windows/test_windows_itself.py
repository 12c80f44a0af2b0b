"""The real libraries of Windows, or of Wine: slots, IIDs, structures, events and threads against code that is not ours.

Wine budgets the whole card and counts no usage, so that numbers are not judged here. See scripts/test-windows.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import closing
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import pytest
from windows.compiled import Compiled
from windows.world import GIB, XT

from mmswap.card import dxgi, pdh, wddm_session
from mmswap.card.dxgi import LOCAL, NON_LOCAL, Adapter, Description, Factory, open_factory
from mmswap.card.luid import OpenAdapter
from mmswap.card.wddm import Budget, open_wddm
from mmswap.card.wddm_device import VENDORS
from mmswap.card.wddm_libraries import CallFailed, Libraries, bind

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="needs Windows, or scripts/test-windows")

UNSUPPORTED, NO_INTERFACE = 0x887A0004, 0x80004002


@pytest.fixture
def factory() -> Iterator[Factory]:
    try:
        opened = open_factory(Libraries.of_system("hip").dxgi)
    except CallFailed as error:
        if error.status == UNSUPPORTED:
            pytest.skip("this Wine has no dxgi without a display")
        raise
    with opened:
        yield opened


@pytest.fixture
def first(factory: Factory) -> Description:
    """The first adapter that has memory of its own."""
    about = []
    for adapter in factory.adapters():
        with adapter:
            about.append(adapter.describe())
    return next(one for one in about if one.dedicated)


@pytest.fixture
def runtime(fakes: Path, first: Description, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A HIP runtime whose device 0 is that adapter, whoever made it."""
    monkeypatch.setitem(VENDORS, "hip", first.vendor)
    world = Compiled(fakes)
    world.device(first.luid)
    return world.runtime


def test_every_adapter_is_found_again_by_its_luid(factory: Factory) -> None:
    listed = factory.adapters()
    assert listed
    for adapter in listed:
        with adapter, factory.adapter(adapter.describe().luid) as again:
            about = again.describe()
            assert about == adapter.describe()
            assert about.name.isprintable()
            assert 0 < again.memory(LOCAL).budget <= about.dedicated + about.shared
            assert again.memory(NON_LOCAL).usage <= about.shared
    assert factory.is_current()


def test_a_wrong_luid_is_not_found(factory: Factory) -> None:
    with pytest.raises(CallFailed, match="EnumAdapterByLuid failed with 0x887A0002"):
        factory.adapter(0x7777_00000001)


def test_one_wrong_digit_of_an_iid_is_refused(factory: Factory) -> None:
    class Almost(Adapter):
        iid = dxgi.Guid.of("645967a4-1392-4310-a798-8053ce3e93fc")

    (adapter, *others) = factory.adapters()
    dxgi.close_all(others)
    with adapter, pytest.raises(CallFailed) as refused:
        adapter.query(Almost)
    assert refused.value.status == NO_INTERFACE


def test_references_are_counted_as_com_counts_them(factory: Factory) -> None:
    (adapter, *others) = factory.adapters()
    dxgi.close_all(others)
    again = adapter.query(Adapter)
    assert again.invoke("Release") == 1, "the other reference is the only one left"
    assert adapter.invoke("Release") == 0


def test_slots_and_layouts_are_those_of_the_headers(fakes: Path) -> None:
    headers = ctypes.CDLL(str(fakes / "headers.dll"))
    headers.header_iid.restype = c_void_p
    about, info, item, value = dxgi.AdapterDescription, dxgi.MemoryInfo, pdh.CounterItem, pdh.CounterValue
    ours = {
        **{f"IDXGIAdapter3.{name}": slot for name, (slot, *_) in Adapter.slots.items()},
        **{f"IDXGIFactory4.{name}": slot for name, (slot, *_) in Factory.slots.items()},
        "DXGI_ADAPTER_DESC1": ctypes.sizeof(about),
        "DXGI_ADAPTER_DESC1.Description": about.name_units.offset,
        "DXGI_ADAPTER_DESC1.VendorId": about.vendor.offset,
        "DXGI_ADAPTER_DESC1.DedicatedVideoMemory": about.dedicated.offset,
        "DXGI_ADAPTER_DESC1.SharedSystemMemory": about.shared.offset,
        "DXGI_ADAPTER_DESC1.AdapterLuid": about.luid.offset,
        "DXGI_ADAPTER_DESC1.Flags": about.flags.offset,
        "DXGI_QUERY_VIDEO_MEMORY_INFO": ctypes.sizeof(info),
        "DXGI_QUERY_VIDEO_MEMORY_INFO.Budget": info.budget.offset,
        "DXGI_QUERY_VIDEO_MEMORY_INFO.CurrentUsage": info.usage.offset,
        "LUID.LowPart": dxgi.Luid.low.offset,
        "LUID.HighPart": dxgi.Luid.high.offset,
        "PDH_FMT_COUNTERVALUE_ITEM_W": ctypes.sizeof(item),
        "PDH_FMT_COUNTERVALUE_ITEM_W.FmtValue": item.value.offset,
        "PDH_FMT_COUNTERVALUE.CStatus": value.status.offset,
        "PDH_FMT_COUNTERVALUE.largeValue": value.value.offset,
        "DXGI_MEMORY_SEGMENT_GROUP_LOCAL": dxgi.LOCAL,
        "DXGI_MEMORY_SEGMENT_GROUP_NON_LOCAL": dxgi.NON_LOCAL,
        "DXGI_ADAPTER_FLAG_REMOTE": dxgi.REMOTE,
        "DXGI_ADAPTER_FLAG_SOFTWARE": dxgi.SOFTWARE,
        "PDH_FMT_LARGE": pdh.FORMAT_LARGE,
    }
    assert {name: headers.header_value(name.encode()) for name in ours} == ours
    for interface, name in ((Adapter, b"IDXGIAdapter3"), (Factory, b"IDXGIFactory4")):
        assert bytes(interface.iid) == ctypes.string_at(headers.header_iid(name), 16)


def test_the_runtime_is_the_one_that_is_loaded(fakes: Path) -> None:
    loaded = ctypes.WinDLL(str(fakes / "amdhip64_7.dll"))
    assert Libraries.of_system("hip").runtime._handle == loaded._handle
    with pytest.raises(CallFailed, match=r"nvcuda\.dll is loaded"):
        bind(Libraries.of_system("cuda").runtime, "cuDeviceGet", ctypes.c_int)


def test_the_budget_of_windows_own_adapter(runtime: Any, first: Description, caplog: pytest.LogCaptureFixture) -> None:
    """As on a user's machine: nothing is given but the device, everything else is found."""
    with caplog.at_level(logging.INFO):
        wddm = open_wddm(kind="hip", ordinal=0, name=XT, total=first.dedicated, environ={})
        assert wddm is not None
        found = wddm.memory()
    assert isinstance(found, Budget)
    assert 0 < found.budget <= first.dedicated + first.shared
    assert wddm.route == f"'{first.name}', found by the LUID of hipDeviceGetLuid"
    assert [message for message in caplog.messages if message.startswith("WDDM: Windows budgets ")] == caplog.messages
    assert len(caplog.messages) == 1
    assert isinstance(wddm.adapter_used(), int | str)
    assert isinstance(wddm.process_shared(), int)
    wddm.close()


def test_a_budget_event_of_windows_reaches_the_watch(runtime: Any, first: Description) -> None:
    device = wddm_session.Device("hip", 0, XT, first.dedicated)
    session = wddm_session.Session(Libraries.of_system("hip"), device)
    assert session._watch is not None, "RegisterVideoMemoryBudgetChangeNotificationEvent was refused"
    ctypes.WinDLL("kernel32").SetEvent(c_void_p(session._watch._events[0]))  # as Windows does when the budget changes
    assert session._watch.changed.wait(30)
    session.close()


def test_counters_that_windows_does_not_have_are_a_reason() -> None:
    with closing(pdh.GpuCounters(Libraries.of_system("hip").pdh)) as counters:
        try:
            said = all(row.bytes >= 0 for row in counters.read(pdh.ADAPTER_DEDICATED))  # a real Windows
        except CallFailed as error:
            said = str(error).startswith("PdhAddEnglishCounterW failed with 0xC0000BB")  # Wine
        assert said


def test_the_kernels_handle_of_an_adapter(first: Description) -> None:
    gdi = Libraries.of_system("hip").gdi
    opening = OpenAdapter(dxgi.Luid.of(first.luid), 0)
    assert bind(gdi, "D3DKMTOpenAdapterFromLuid", ctypes.c_int, c_void_p)(byref(opening)) == 0
    assert opening.handle
    handle = ctypes.c_uint32(opening.handle)
    assert bind(gdi, "D3DKMTCloseAdapter", ctypes.c_int, c_void_p)(byref(handle)) == 0


def test_no_card_of_that_kind_is_a_reason_and_not_an_error() -> None:
    wddm = open_wddm(kind="hip", ordinal=0, name="no such card", total=3 * GIB, environ={})
    assert wddm is not None
    assert str(wddm.memory()).startswith("unknown, because ")
    wddm.close()
    assert open_wddm(kind="cuda", ordinal=0, name=XT, total=GIB, environ={}) is None
    assert open_wddm(kind="hip", ordinal=0, name=XT, total=GIB, environ={"MMSWAP_WDDM_BUDGET": "0"}) is None
