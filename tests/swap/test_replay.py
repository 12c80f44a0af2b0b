"""The allocator's policy by property, and its segments by example."""

from __future__ import annotations

import contextlib
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lifetimes import lifetimes, live_peak, steps

from mmswap.swap.allocator import OutOfRoom
from mmswap.swap.event import Event
from mmswap.swap.replay import ARENA, EXPANDABLE, ROUND, TORCH, Block, Policy, allocator_of, growth, least_free
from mmswap.units import KIB, MIB

policies = st.sampled_from([ARENA, TORCH, EXPANDABLE])
regions = st.sampled_from([0, 511, 4 * KIB, MIB, 17 * MIB, 100 * MIB])


def runs(events: list[Event], policy: Policy, limit: int) -> bool:
    """Whether the events find room within `limit` bytes."""
    allocator = allocator_of(policy, limit=limit)
    blocks: dict[int, Block] = {}
    try:
        for event in events:
            if event.delta > 0:
                blocks[event.ident] = allocator.malloc(event.delta)
            else:
                allocator.free(blocks.pop(event.ident))
    except OutOfRoom:
        return False
    return True


@given(steps, regions, policies)
def test_blocks_never_overlap_and_bytes_are_conserved(
    plan: list[tuple[int, int, bool]], region: int, policy: Policy
) -> None:
    allocator = allocator_of(policy, region)
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
    allocator = allocator_of(policy, region)
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
    allocator = allocator_of(ARENA)
    large, wall, small, _end = (allocator.malloc(size) for size in (8192, 512, 2048, 512))
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(2000).address == small.address
    assert allocator.malloc(4000).address == large.address
    assert wall.size == 512
    assert allocator.peak_growth == 8192 + 512 + 2048 + 512


@given(steps, policies)
def test_the_least_that_works_lies_between_what_lives_and_what_is_taken(
    plan: list[tuple[int, int, bool]], policy: Policy
) -> None:
    events = lifetimes(plan)
    least = least_free(events, 0, policy)
    assert live_peak(events) <= least <= growth(events, 0, policy)


@given(steps, policies)
def test_the_least_that_works_works_and_one_byte_less_does_not(
    plan: list[tuple[int, int, bool]], policy: Policy
) -> None:
    events = lifetimes(plan)
    least = least_free(events, 0, policy)
    for more in (0, 1, 2 * MIB, 64 * MIB):
        assert runs(events, policy, least + more)
    assert not events or not runs(events, policy, least - 1)


@given(steps, regions)
def test_lent_bytes_never_raise_the_least_of_what_must_be_free_by_more_than_they_are(
    plan: list[tuple[int, int, bool]], region: int
) -> None:
    events = lifetimes(plan)
    assert least_free(events, region, TORCH) + region >= live_peak(events)
    assert least_free(events, region, TORCH) <= growth(events, region, TORCH)


@given(steps, st.integers(0, 200), st.sampled_from([TORCH, EXPANDABLE]))
def test_what_is_reserved_stays_within_the_limit_and_covers_what_is_taken(
    plan: list[tuple[int, int, bool]], limit: int, policy: Policy
) -> None:
    allocator = allocator_of(policy, limit=limit * MIB)
    taken: dict[int, Block] = {}
    for event in lifetimes(plan):
        if event.delta < 0:
            if event.ident in taken:
                allocator.free(taken.pop(event.ident))
            continue
        with contextlib.suppress(OutOfRoom):  # refused, as torch would by an exception; the others live on
            taken[event.ident] = allocator.malloc(event.delta)
        spans = sorted((block.address, block.address + block.size) for block in taken.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        free = sum(size for pool in allocator._pools for size, *_ in pool)
        assert sum(block.size for block in taken.values()) + free == allocator.reserved <= limit * MIB
        assert allocator.reserved % (2 * MIB) == 0
    for block in taken.values():
        allocator.free(block)
    allocator.release_cached()
    assert allocator.reserved == 0


def test_freeing_twice_is_a_defect() -> None:
    allocator = allocator_of(TORCH, 4096)
    block = allocator.malloc(100)
    allocator.free(block)
    with pytest.raises(AssertionError):
        allocator.free(block)
