"""Lifetimes for the replay: by hand, at random, and from a real trace of a tower-like pattern. No test in here."""

from __future__ import annotations

from hypothesis import strategies as st

from mmswap.swap.event import Event
from mmswap.units import KIB, MIB

sizes = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(9 * MIB, 40 * MIB))
steps = st.lists(st.tuples(sizes, st.integers(0, 10**6), st.booleans()), max_size=60)


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


def events_of(*deltas: int) -> list[Event]:
    """`events_of(+5, +7, -5)`: a negative number is the death of the oldest living block of that size."""
    events: list[Event] = []
    alive: list[tuple[int, int]] = []
    for ident, delta in enumerate(deltas):
        if delta > 0:
            alive.append((delta, ident))
            events.append(Event(delta, ident, "op", ""))
        else:
            entry = next(one for one in alive if one[0] == -delta)
            alive.remove(entry)
            events.append(Event(delta, entry[1], "", ""))
    return events


def live_peak(events: list[Event]) -> int:
    """The most bytes alive at once."""
    now = most = 0
    for event in events:
        now += event.delta
        most = max(most, now)
    return most
