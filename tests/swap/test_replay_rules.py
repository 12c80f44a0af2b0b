"""Each rule of torch's caching allocator by an example whose figures were worked out by hand."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lifetimes import events_of, lifetimes

from mmswap.swap.event import Event
from mmswap.swap.peak import Peak
from mmswap.swap.replay import ARENA, EXPANDABLE, ROUND, TORCH, allocator_of, growth, least_free
from mmswap.units import KIB, MIB


@pytest.mark.parametrize(
    ("asked", "taken"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (3 * MIB + 1, 3 * MIB + 512)]
)
def test_sizes_are_rounded_to_512_bytes(asked: int, taken: int) -> None:
    assert allocator_of(EXPANDABLE).malloc(asked).size == taken


def test_small_requests_share_segments_of_2_mib() -> None:
    assert growth(events_of(MIB, MIB), policy=TORCH) == 2 * MIB
    assert growth(events_of(MIB, MIB, 1), policy=TORCH) == 4 * MIB
    assert growth(events_of(*[KIB] * 2048), policy=TORCH) == 2 * MIB
    assert growth(events_of(*[KIB] * 2049), policy=TORCH) == 4 * MIB


def test_requests_up_to_10_mib_share_segments_of_20() -> None:
    assert growth(events_of(MIB + 1), policy=TORCH) == 20 * MIB
    assert growth(events_of(*[5 * MIB] * 4), policy=TORCH) == 20 * MIB
    assert growth(events_of(*[6 * MIB] * 4), policy=TORCH) == 40 * MIB  # 2 MiB are left over of each


def test_from_10_mib_on_a_request_has_its_own_segment_in_steps_of_2_mib() -> None:
    assert growth(events_of(10 * MIB), policy=TORCH) == 10 * MIB
    assert growth(events_of(10 * MIB + 1), policy=TORCH) == 12 * MIB
    assert growth(events_of(33 * MIB, 33 * MIB), policy=TORCH) == 68 * MIB


def test_a_large_block_is_split_only_when_more_than_1_mib_would_be_left() -> None:
    hole = 12 * MIB
    assert growth(events_of(hole, -hole, 11 * MIB, 512 * KIB), policy=TORCH) == 12 * MIB + 2 * MIB
    splits = events_of(hole, -hole, 10 * MIB, 2 * MIB)  # 2 MiB are left, and serve the next
    assert growth(splits, policy=TORCH) == 12 * MIB
    whole = events_of(hole, -hole, 11 * MIB, 2 * MIB)  # 1 MiB is left, and stays in the block
    assert growth(whole, policy=TORCH) == 12 * MIB + 20 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    events = events_of(30 * MIB, 12 * MIB, -30 * MIB, -12 * MIB, 11 * MIB, 30 * MIB)
    assert growth(events, policy=TORCH) == 42 * MIB  # the other way round the 30 would have needed a third segment


def test_free_neighbours_become_one_but_segments_never_do() -> None:
    one = events_of(*[5 * MIB] * 4, *[-5 * MIB] * 4, 9 * MIB, 9 * MIB)
    assert growth(one, policy=TORCH) == 20 * MIB
    two = events_of(10 * MIB, 10 * MIB, -10 * MIB, -10 * MIB, 20 * MIB)
    assert growth(two, policy=TORCH) == 40 * MIB


def test_when_room_runs_out_cached_segments_are_given_back_first() -> None:
    events = events_of(10 * MIB, 10 * MIB, -10 * MIB, -10 * MIB, 20 * MIB)
    assert least_free(events) == 20 * MIB
    kept = events_of(10 * MIB, 10 * MIB, -10 * MIB, 20 * MIB)  # one of them is in use
    assert least_free(kept) == 30 * MIB
    split = events_of(4 * MIB, 4 * MIB, -4 * MIB, 30 * MIB)  # a segment with one living block goes nowhere
    assert least_free(split) == 50 * MIB


def test_expandable_segments_grow_by_what_is_missing_in_pages() -> None:
    events = events_of(10 * MIB, 10 * MIB, -10 * MIB, -10 * MIB, 20 * MIB)
    assert growth(events, policy=EXPANDABLE) == 20 * MIB
    assert growth(events_of(21 * MIB), policy=EXPANDABLE) == 40 * MIB
    assert growth(events_of(21 * MIB, 19 * MIB), policy=EXPANDABLE) == 40 * MIB  # the page's rest serves
    assert growth(events_of(MIB, MIB, MIB), policy=EXPANDABLE) == 4 * MIB


def test_an_expandable_segment_splits_down_to_512_bytes() -> None:
    allocator = allocator_of(EXPANDABLE)
    block, _wall = allocator.malloc(4 * MIB), allocator.malloc(3 * MIB)
    allocator.free(block)
    assert allocator.malloc(4 * MIB - 512).address == block.address
    assert [size for size, _, free in allocator._pools[1] if free.address < _wall.address] == [512]


def test_the_growing_end_of_an_expandable_segment_is_used_last() -> None:
    allocator = allocator_of(EXPANDABLE)
    hole = allocator.malloc(8 * MIB)
    allocator.malloc(8 * MIB)  # then 4 MiB are free at the end of the first page: less than the hole
    allocator.free(hole)
    assert allocator.malloc(2 * MIB).address == hole.address


def test_an_expandable_segment_gives_whole_pages_back_from_anywhere() -> None:
    allocator = allocator_of(EXPANDABLE)
    first, middle, last = (allocator.malloc(40 * MIB) for _ in range(3))
    allocator.free(middle)
    allocator.release_cached()
    assert allocator.reserved == 80 * MIB
    again = allocator.malloc(30 * MIB)  # the hole in the middle is the lowest place
    assert again.address == middle.address
    assert allocator.reserved == 120 * MIB
    for block in (first, again, last):
        allocator.free(block)
    allocator.release_cached()
    assert allocator.reserved == 0


def test_the_arena_takes_what_lives_and_nothing_for_segments() -> None:
    assert growth(events_of(1), policy=ARENA) == ROUND
    assert growth(events_of(3 * MIB, 5 * KIB, -3 * MIB, 3 * MIB), policy=ARENA) == 3 * MIB + 5 * KIB


def test_lent_bytes_hold_what_they_can_and_are_never_given_back() -> None:
    events = events_of(8 * MIB, 30 * MIB, -8 * MIB, -30 * MIB, 50 * MIB)
    assert growth(events, 40 * MIB, TORCH) == 50 * MIB
    assert least_free(events, 40 * MIB, TORCH) == 50 * MIB
    assert growth(events, 50 * MIB, TORCH) == 0


def test_a_peak_that_was_only_measured_says_what_it_knows() -> None:
    peak = Peak(100, 120, 10, (), "measured")
    assert peak.reserved() == peak.least_free() == 120


def test_a_peak_knows_reserved_and_least_in_every_mode() -> None:
    peak = Peak(20 * MIB, 20 * MIB, 0, events_of(10 * MIB, 10 * MIB, -10 * MIB, -10 * MIB, 20 * MIB), "by hand", TORCH)
    assert (peak.reserved(), peak.least_free()) == (40 * MIB, 20 * MIB)
    assert peak.reserved(EXPANDABLE) == peak.least_free(EXPANDABLE) == 20 * MIB
    assert peak.total == peak.reserved(TORCH)


CASES = 40
FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
_PLAY = "import test_replay_rules as t; print(*[t.play(seed) for seed in range(t.CASES)])"


def play(seed: int) -> int:
    """The same lifetimes on a real card: what torch has reserved at the most."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    held = {}
    for event in random_events(seed):
        if event.delta > 0:
            held[event.ident] = torch.empty(event.delta, dtype=torch.uint8, device="cuda")
        else:
            del held[event.ident]
    return torch.cuda.max_memory_reserved() - before


def random_events(seed: int) -> list[Event]:
    source = random.Random(seed)
    largest = (4 * KIB, MIB, 3 * MIB, 40 * MIB)
    return lifetimes(
        [
            (source.randint(1, source.choice(largest)), source.randrange(10**6), source.random() < 0.6)
            for _ in range(400)
        ]
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card to compare with")
@pytest.mark.parametrize(("settings", "policy"), [("", TORCH), ("expandable_segments:True", EXPANDABLE)])
def test_a_real_card_reserves_exactly_what_the_replay_says(settings: str, policy: object) -> None:
    told = subprocess.run(  # the allocator reads its settings once per process
        [sys.executable, "-c", f"import sys; sys.path[:0] = {FOLDERS}; {_PLAY}"],
        env={**os.environ, "PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    expected = [growth(random_events(seed), 0, policy) for seed in range(CASES)]
    assert [int(figure) for figure in told.stdout.split()] == expected
