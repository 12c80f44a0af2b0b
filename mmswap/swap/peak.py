"""The answer of a dry run: how many bytes a call needs, and why we believe it. Knows lifetimes, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mmswap.swap.event import SCRATCH, Event
from mmswap.swap.replay import ARENA, TORCH, Policy, growth, least_free


@dataclass(slots=True)
class Peak:
    """Bytes above what was there just before the call. Inputs and weights are not counted; the result is: it is alive
    at the end, inside `live` and `with_scratch` alike.

    Attributes:
        live: most bytes of tensors alive at once.
        with_scratch: the same with what kernels take inside one op.
        output: bytes of the result.
        events: the lifetimes, scratch included, in order.
        how: where the numbers come from, for people.
        policy: how the card's allocator takes memory.
        result: what the call returned on the twin: layouts without numbers. None if it was not traced.
    """

    live: int
    with_scratch: int
    output: int
    events: Sequence[Event]
    how: str
    policy: Policy = ARENA
    result: Any = field(default=None, repr=False)
    _grown: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def total(self) -> int:
        """Bytes that must be free when nothing is lent."""
        return self.beyond(0)

    def beyond(self, lent: int) -> int:
        """Bytes that must be free OUTSIDE of `lent` contiguous lent bytes; never more for more that is lent.

        The lifetimes are replayed through the allocator's policy. Best fit may do worse with a larger region; then
        the figure of the smaller one stands (as if the rest were left unused), so that a plan sees a falling curve.
        """
        if lent not in self._grown:
            grown = growth(self.events, lent, self.policy) if self.events else max(0, self.with_scratch - lent)
            self._grown[lent] = grown
        return min(grown for size, grown in self._grown.items() if size <= lent)

    def reserved(self, policy: Policy = TORCH) -> int:
        """Bytes that an allocator of that policy takes from the device, as if it had all of it."""
        return growth(self.events, 0, policy) if self.events else self.with_scratch

    def least_free(self, policy: Policy = TORCH) -> int:
        """The fewest free bytes with which the call runs, and with any number above; see `replay.least_free`."""
        return least_free(self.events, 0, policy) if self.events else self.with_scratch

    def lasting(self) -> Peak:
        """The same without what kernels take inside one op."""
        scratch = {event.ident for event in self.events if event.op.startswith(SCRATCH)}
        events = tuple(event for event in self.events if event.ident not in scratch)
        return Peak(self.live, self.live, self.output, events, self.how, self.policy, self.result)


def summits(events: Sequence[Event]) -> tuple[int, int]:
    """The most bytes alive at once in `events`: without and with kernels' scratch."""
    live = most = most_with_scratch = 0
    scratch: set[int] = set()
    for event in events:
        if event.op.startswith(SCRATCH):
            scratch.add(event.ident)
            most_with_scratch = max(most_with_scratch, live + event.delta)
        elif event.ident not in scratch:
            live += event.delta
            most = max(most, live)
    return most, max(most, most_with_scratch)
