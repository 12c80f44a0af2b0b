"""From lifetimes to the bytes that must really be there: the traced events, run through an allocator's own policy.

Pure arithmetic over ints; knows no tensor and no card:

    growth(tracker.events, region=lent)     # bytes that must be free outside of `lent` contiguous lent bytes
    least_free(tracker.events)              # the fewest free bytes with which they run at all
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmswap.swap.allocator import ARENA, EXPANDABLE, ROUND, TORCH, Allocator, Block, OutOfRoom, Policy
from mmswap.swap.event import Event
from mmswap.swap.paged import PagedAllocator

__all__ = [
    "ARENA",
    "EXPANDABLE",
    "ROUND",
    "TORCH",
    "Allocator",
    "Block",
    "Policy",
    "allocator_of",
    "growth",
    "least_free",
]


def allocator_of(policy: Policy, region: int = 0, limit: int | None = None) -> Allocator:
    """An allocator of that policy with `region` lent bytes; see `Allocator`."""
    return (PagedAllocator if policy.expandable else Allocator)(region, policy, limit)


def growth(events: Iterable[Event], region: int = 0, policy: Policy = ARENA) -> int:
    """Bytes that must be free outside of `region` contiguous lent bytes for `events` to run; 0: it holds them all.

    With a region of 0 this is what torch would call *reserved*: nothing is given back before room runs out.
    """
    return _replayed(events, allocator_of(policy, region))


def least_free(events: Sequence[Event], region: int = 0, policy: Policy = TORCH) -> int:
    """The fewest free bytes such that `events` run with them and with any number above.

    When a request finds no room, the allocator first gives its cached segments back and asks again; the device's
    figure may therefore be smaller than `growth`. A run whose most was P would go the same way with any limit from P
    up, so limits are tried downwards, each just below what the last run took. Below the answer there may be smaller
    amounts that happen to work; one that is larger always does.
    """
    most = growth(events, region, policy)
    while most > 0:
        try:
            most = _replayed(events, allocator_of(policy, region, limit=most - 1))
        except OutOfRoom:
            break
    return most


def _replayed(events: Iterable[Event], allocator: Allocator) -> int:
    blocks: dict[int, Block] = {}
    for event in events:
        if event.delta > 0:
            blocks[event.ident] = allocator.malloc(event.delta)
        else:
            allocator.free(blocks.pop(event.ident))
    return allocator.peak_growth
