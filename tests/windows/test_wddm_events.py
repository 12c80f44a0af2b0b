"""When to ask again: budget events, the poll, a factory that is out of date; and that several threads may ask."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windows.world import GIB, MIB, World

from mmswap.card.wddm import Budget, Wddm

ROOT = Path(__file__).parents[2]
LUID, OTHER = 0x1D3F4, 0x20_000000AA
PATIENCE = 30.0  # seconds until a test gives a thread up


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def usual(windows: World) -> Clock:
    windows.card(LUID)
    windows.device(LUID)
    return Clock()


def budget_of(wddm: Wddm) -> int | str:
    found = wddm.memory()
    return found.budget if isinstance(found, Budget) else found


def changed_by_event(wddm: Wddm) -> bool:
    """Whether an event arrives; its thread is waited for."""
    (session,) = wddm._sessions
    assert session._watch is not None
    return session._watch.changed.wait(PATIENCE) and wddm.changed()


def test_the_poll_asks_again_after_two_seconds(windows: World) -> None:
    clock = usual(windows)
    wddm = windows.open(clock=clock)
    assert wddm.changed(), "never asked"
    budget_of(wddm)
    for passed, again in ((0.0, False), (1.9, False), (0.2, True), (5.0, True)):
        clock.now += passed
        assert wddm.changed() is again
    budget_of(wddm)
    assert not wddm.changed()
    wddm.close()


def test_a_falling_budget_is_announced_each_time(windows: World) -> None:
    clock = usual(windows)
    wddm = windows.open(clock=clock)
    budget_of(wddm)
    assert windows.held()["registered"] == 1
    for budget in (15569, 14515, 14543, 14538, 9000, 15569):
        assert not wddm.changed()
        windows.memory(LUID, budget * MIB)
        windows.signal()
        assert changed_by_event(wddm)
        assert wddm.changed(), "asking whether does not answer it"
        assert budget_of(wddm) == budget * MIB
    wddm.close()


def test_twins_both_announce(windows: World) -> None:
    clock = usual(windows)
    windows.card(OTHER)
    windows.fail("hipDeviceGetLuid", "hipGetDevicePropertiesR0600", "hipDeviceGetPCIBusId")
    wddm = windows.open(clock=clock)
    budget_of(wddm)
    assert windows.held()["registered"] == 2
    windows.signal()
    assert changed_by_event(wddm)
    wddm.close()


def test_close_ends_the_thread_and_gives_everything_back(windows: World) -> None:
    usual(windows)
    before = threading.active_count()
    wddm = windows.open()
    budget_of(wddm)
    assert threading.active_count() == before + 1
    wddm.close()
    wddm.close()
    assert threading.active_count() == before
    assert not any(windows.held().values())
    assert wddm.memory() == wddm.adapter_used() == wddm.process_shared() == "unknown, because it was closed"
    assert not any(windows.held().values())


def test_forgetting_it_gives_everything_back_too(windows: World) -> None:
    usual(windows)
    before = threading.active_count()
    wddm = windows.open()
    budget_of(wddm)
    assert windows.held()["live"] > 0
    del wddm
    gc.collect()
    assert threading.active_count() == before
    assert not any(windows.held().values())


def test_a_factory_that_is_out_of_date_is_made_again(windows: World) -> None:
    usual(windows)
    wddm = windows.open()
    assert budget_of(wddm) == 16368 * MIB
    wddm.adapter_used()
    held = windows.held()
    windows.forget_cards()  # the driver was reset: the same card under another LUID
    windows.card(OTHER)
    windows.memory(OTHER, 9 * GIB)
    windows.outdate()
    windows.fail("hipDeviceGetLuid", "hipGetDevicePropertiesR0600")
    assert budget_of(wddm) == 9 * GIB
    wddm.adapter_used()
    assert windows.held() == held, "the old factory is still held"
    wddm.close()


def test_a_card_that_is_gone_is_unknown_until_it_is_back(windows: World) -> None:
    usual(windows)
    wddm = windows.open()
    budget_of(wddm)
    windows.forget_cards()
    windows.outdate()
    assert isinstance(wddm.memory(), str)
    assert not any(windows.held().values())
    windows.card(LUID)
    assert budget_of(wddm) == 16368 * MIB
    wddm.close()


def test_a_removed_device_is_opened_anew_although_the_factory_is_current(windows: World) -> None:
    usual(windows)
    wddm = windows.open()
    budget_of(wddm)
    windows.fail("QueryVideoMemoryInfo")
    assert isinstance(wddm.memory(), str)
    windows.fail()
    windows.forget_cards()
    windows.card(OTHER)
    assert budget_of(wddm) == 16368 * MIB
    wddm.close()


def test_without_events_the_poll_is_left(windows: World) -> None:
    for failing in ("CreateEventW", "Register"):
        if failing == "CreateEventW" and "kernel32" in str(windows.libraries().kernel):
            continue  # the real one does not fail on demand
        windows.forget_cards()
        clock = usual(windows)
        windows.fail(failing)
        wddm = windows.open(clock=clock)
        assert budget_of(wddm) == 16368 * MIB
        assert not wddm.changed()
        clock.now += 2
        assert wddm.changed()
        wddm.close()
        assert not any(windows.held().values())


def test_many_threads_ask_at_once(windows: World) -> None:
    usual(windows)
    windows.row(LUID, dedicated=3 * GIB)
    wddm = windows.open()

    def ask(index: int) -> bool:
        if index % 7 == 0:
            windows.outdate()
        if index % 3 == 0:
            windows.signal()
        wddm.changed()
        return wddm.adapter_used() == 3 * GIB and budget_of(wddm) == 16368 * MIB

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(120)))
    wddm.close()


def test_a_process_that_forgets_to_close_ends_well() -> None:
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "tests")]!r}
from windows.vtables import Vtables
windows = Vtables()
windows.card({LUID})
windows.device({LUID})
wddm = windows.open()
print(wddm.memory().budget, windows.held()["registered"])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [str(16368 * MIB), "1"], "")
