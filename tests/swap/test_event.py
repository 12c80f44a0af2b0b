"""Lifetimes as text: what comes back has the same sizes, order and kinds, and text of another kind is refused."""

from __future__ import annotations

import lifetimes
import pytest
from hypothesis import given

from mmswap.swap.event import SCRATCH, Event, packed, unpacked
from mmswap.swap.peak import summits
from mmswap.swap.replay import ARENA, TORCH, growth


@given(lifetimes.steps.map(lifetimes.lifetimes))
def test_unpacked_lifetimes_need_what_the_packed_ones_needed(events: list[Event]) -> None:
    again = unpacked(packed(events))
    assert [event.delta for event in again] == [event.delta for event in events]
    for policy in (ARENA, TORCH):
        for region in (0, 700, 1 << 21):
            assert growth(again, region, policy) == growth(events, region, policy)


def test_what_a_kernel_takes_for_itself_is_told_apart() -> None:
    events = [Event(8, 5, "aten.mm", "layers.0"), Event(99, 9, SCRATCH + "aten.mm", ""), Event(-99, 9, "", "")]
    again = unpacked(packed(events))
    assert summits(again) == summits(events) == (8, 107)
    assert [event.op for event in again] == ["", SCRATCH, ""]


def test_blocks_that_repeat_cost_next_to_nothing() -> None:
    block = [(4096 * n, n) for n in range(1, 40)]
    events = [Event(size, 100 * i + n, "", "") for i in range(400) for size, n in block]
    assert len(packed(events)) < 4000


@pytest.mark.parametrize("text", ["no lifetimes", packed([])[:-5]])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unpacked(text)
