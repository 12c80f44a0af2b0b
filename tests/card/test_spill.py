"""The spill watch: growth beyond our own pins, said once with cause and answer, counted, and never guessed."""

from __future__ import annotations

import gc
import logging
import threading
import time

import pytest

from mmswap.card import HostCard, SimulatedCard
from mmswap.card.spill import SLACK, Spill, SpillWatch
from mmswap.card.watching import watch_of

MIB = 1 << 20


class Driver:
    """What the driver says lies in host memory, and what we have pinned."""

    def __init__(self, shared: int | str = 0) -> None:
        self.shared = shared
        self.pinned = 0

    def watch(self, **options: object) -> SpillWatch:
        made = SpillWatch(
            lambda: self.shared,
            how="shared usage",
            pinned=lambda: self.pinned,
            **options,  # type: ignore[arg-type]
        )
        made.rebase()
        return made

    def grow(self, nbytes: int) -> None:
        assert isinstance(self.shared, int)
        self.shared += nbytes


def test_929_mib_beyond_the_baseline_are_said_once_with_cause_and_answer(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(shared=32 * MIB)  # the pinned ring, from before
    watch = driver.watch()
    assert watch.poll() == Spill(0, "", "shared usage")
    driver.grow(929 * MIB)
    with caplog.at_level(logging.WARNING):
        found = watch.poll("when an image had been encoded")
        for _ in range(10):
            watch.poll()
    assert (found.bytes, found.how) == (929 * MIB, "shared usage")
    assert "when an image had been encoded" in found.cause
    assert len(caplog.records) == 1
    for words in (
        "929.0 MiB",
        "shared usage",
        "when an image had been encoded",
        "the next window evicts one more unit",
    ):
        assert words in caplog.text
    assert watch.news() == [caplog.records[0].getMessage()]
    assert watch.news() == []
    count = watch.count()
    assert (count.count, count.worst_bytes, count.bytes) == (1, 929 * MIB, 929 * MIB)
    assert (watch.unanswered(), watch.unanswered()) == (1, 0)


def test_a_spill_that_ends_is_said_and_the_next_one_is_a_new_one() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.grow(100 * MIB)
    watch.poll()
    driver.shared = 0
    assert watch.poll().bytes == 0
    driver.grow(200 * MIB)
    watch.poll()
    assert ["SPILL" in said for said in watch.news()] == [True, False, True]
    assert (watch.count().count, watch.count().worst_bytes) == (2, 200 * MIB)


def test_a_spill_that_grows_on_is_told_again() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.grow(100 * MIB)
    watch.poll()
    driver.grow(SLACK // 2)
    watch.poll()
    assert watch.count().count == 1
    driver.grow(SLACK)
    watch.poll()
    assert watch.count().count == 2


def test_our_own_pins_are_no_spill_where_the_driver_counts_them() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.pinned += 4096 * MIB
    driver.grow(4096 * MIB)
    assert watch.poll().bytes == 0
    driver.grow(64 * MIB)  # and these are not pinned
    assert watch.poll().bytes == 64 * MIB


def test_our_own_pins_hide_no_spill_where_the_driver_does_not_count_them() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.pinned += 4096 * MIB
    assert watch.poll().bytes == 0  # the look just after the pins
    driver.grow(500 * MIB)
    assert watch.poll().bytes == 500 * MIB


def test_a_look_while_we_pin_waits_and_a_spill_before_it_is_not_hidden() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.grow(300 * MIB)  # before the pins, and not seen yet
    with watch.pinning():
        driver.grow(200 * MIB)
        looked: list[int] = []
        other = threading.Thread(target=lambda: looked.append(watch.poll().bytes))
        other.start()
        driver.pinned += 200 * MIB
        assert looked == []
    other.join()
    assert looked == [300 * MIB]


def test_unpinning_takes_the_baseline_down() -> None:
    driver = Driver()
    watch = driver.watch()
    driver.pinned += 1024 * MIB
    driver.grow(1024 * MIB)
    watch.poll()
    driver.pinned = 0
    driver.shared = 0
    watch.poll()
    driver.grow(300 * MIB)
    assert watch.poll().bytes == 300 * MIB


def test_staging_buffers_are_no_spill() -> None:
    driver = Driver(shared=100 * MIB)
    watch = driver.watch()
    driver.grow(SLACK)
    assert watch.poll().bytes == 0
    driver.grow(1)
    assert watch.poll().bytes == SLACK + 1


@pytest.mark.parametrize("answer", ["unknown, because the counter is not there", RuntimeError("planted")])
def test_an_unknown_figure_is_no_spill_and_says_why(answer: str | Exception) -> None:
    def read() -> int | str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = SpillWatch(read, how="shared usage")
    watch.rebase()
    found = watch.poll()
    assert found.bytes == 0
    assert found.cause.startswith("unknown, because")
    assert watch.count().count == 0
    assert watch.news() == []


def test_a_figure_that_is_first_unknown_gets_its_baseline_late() -> None:
    driver = Driver("unknown, because it is early")
    watch = driver.watch()
    driver.shared = 700 * MIB
    assert watch.poll().bytes == 0
    driver.grow(100 * MIB)
    assert watch.poll().bytes == 100 * MIB


def test_the_thread_finds_a_spill_by_itself_and_ends_with_its_watch() -> None:
    driver = Driver()
    watch = driver.watch()
    watch.start(every=0.005)
    assert any(thread.name == "mmswap-spill" and thread.daemon for thread in threading.enumerate())
    driver.grow(100 * MIB)
    for _ in range(2000):
        if watch.count().count:
            break
        time.sleep(0.005)
    assert watch.count().count == 1
    mine = [thread for thread in threading.enumerate() if thread.name == "mmswap-spill"]
    del watch
    gc.collect()
    for thread in mine:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in mine)


def test_no_thread_where_there_is_nothing_to_look_at() -> None:
    before = threading.active_count()
    for card in (HostCard(), SimulatedCard("sim:1GiB")):
        watch = watch_of(card)
        watch.start(every=0.001)
        assert threading.active_count() == before
    assert watch_of(HostCard()).poll().bytes == 0


def test_a_simulated_card_counts_what_is_claimed_beyond_the_budget() -> None:
    card = SimulatedCard("sim:1000", budget=900)
    watch = watch_of(card)
    card.claim("weights", 950)
    assert card.spilled().bytes == 50
    assert watch.poll().bytes == 50
    assert "50 B" in watch.news()[0]
    card.budget = None
    assert watch.poll().bytes == 0
    watch.note(7, "when somebody counted")
    assert watch.count().count == 2
