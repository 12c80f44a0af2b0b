"""The allocator's policy by property, and its segments by example."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.swap.replay import ARENA, ROUND, TORCH, Allocator, Block, Policy, growth
from mmswap.swap.tracker import Event
from mmswap.units import KIB, MIB

policies = st.sampled_from([ARENA, TORCH])
sizes = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(9 * MIB, 40 * MIB))
steps = st.lists(st.tuples(sizes, st.integers(0, 10**6), st.booleans()), max_size=60)
regions = st.sampled_from([0, 511, 4 * KIB, MIB, 17 * MIB, 100 * MIB])


def lifetimes(plan: list[tuple[int, int, bool]]) -> list[Event]:
    """Allocations in order; where the flag is set, one that is alive dies first."""
    events: list[Event] = []
    alive: list[tuple[int, int]] = []
    for ident, (size, pick, dies) in enumerate(plan):
        if dies and alive:
            old, nbytes = alive.pop(pick % len(alive))
            events.append(Event(-nbytes, old, "", ""))
        events.append(Event(size, ident, "op", ""))
        alive.append((ident, size))
    return events


def live_peak(events: list[Event]) -> int:
    now = most = 0
    for event in events:
        now += event.delta
        most = max(most, now)
    return most


@given(steps, regions, policies)
def test_blocks_never_overlap_and_bytes_are_conserved(
    plan: list[tuple[int, int, bool]], region: int, policy: Policy
) -> None:
    allocator = Allocator(region, policy)
    taken: dict[int, Block] = {}
    for event in lifetimes(plan):
        if event.delta > 0:
            taken[event.ident] = allocator.malloc(event.delta)
            assert taken[event.ident].size >= event.delta
        else:
            allocator.free(taken.pop(event.ident))
        spans = sorted((block.address, block.address + block.size) for block in taken.values())
        spans = sorted(spans + [(b.address, b.address + b.size) for pool in allocator._pools for *_, b in pool])
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        held = sum(end - start for start, end in spans)
        assert held == region // ROUND * ROUND + allocator.peak_growth


@given(steps, regions, policies)
def test_when_all_is_freed_the_region_is_one_block_again(
    plan: list[tuple[int, int, bool]], region: int, policy: Policy
) -> None:
    allocator = Allocator(region, policy)
    blocks = [allocator.malloc(size) for size, _, _ in plan]
    random.Random(len(plan)).shuffle(blocks)
    for block in blocks:
        allocator.free(block)
    whole = [block for pool in allocator._pools for *_, block in pool if block.address == 0]
    if region >= ROUND:
        assert whole[0].size == region // ROUND * ROUND
    for pool in allocator._pools:
        assert all(block.previous is None or not block.previous.free for *_, block in pool)


@given(steps, policies)
def test_growth_covers_the_live_peak(plan: list[tuple[int, int, bool]], policy: Policy) -> None:
    events = lifetimes(plan)
    assert growth(events, 0, policy) >= live_peak(events)


@given(steps, regions)
def test_growth_and_region_together_cover_the_live_peak(plan: list[tuple[int, int, bool]], region: int) -> None:
    events = lifetimes(plan)
    outside = growth(events, region)
    assert outside >= 0
    assert outside + region >= live_peak(events)


@given(steps)
def test_a_region_of_what_was_grown_holds_everything_that_lived_and_never_died(
    plan: list[tuple[int, int, bool]],
) -> None:
    events = [event for event in lifetimes(plan) if event.delta > 0]
    assert growth(events, growth(events)) == 0


@pytest.mark.parametrize(
    ("request_", "taken"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB - ROUND, 20 * MIB), (10 * MIB, 10 * MIB)],
)
def test_segments_of_a_card_are_those_of_torch(request_: int, taken: int) -> None:
    assert growth([Event(request_, 1, "", "")], 0, TORCH) == taken


def test_small_requests_never_use_lent_bytes_on_a_card() -> None:
    events = [Event(MIB, 1, "", ""), Event(4 * MIB, 2, "", "")]
    assert growth(events, 8 * MIB, TORCH) == 2 * MIB
    assert growth(events, 8 * MIB, ARENA) == 0


def test_a_hole_is_used_again_and_the_best_fitting_one() -> None:
    allocator = Allocator()
    large, wall, small, _end = (allocator.malloc(size) for size in (8192, 512, 2048, 512))
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(2000).address == small.address
    assert allocator.malloc(4000).address == large.address
    assert wall.size == 512
    assert allocator.peak_growth == 8192 + 512 + 2048 + 512


def test_freeing_twice_is_a_defect() -> None:
    allocator = Allocator(4096)
    block = allocator.malloc(100)
    allocator.free(block)
    with pytest.raises(AssertionError):
        allocator.free(block)
