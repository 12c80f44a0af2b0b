"""Who has to give way: need, free and ladder in, units and the reason out. Pure functions over ints; knows no torch.

plan(need=700, free=300, ladder=[Rung("layers.7", 256), Rung("layers.6", 256)]).evict == ("layers.7", "layers.6")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from mmswap.units import format_apart

Need = int | Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Rung:
    """One unit on the ladder, and the bytes that evicting it gives."""

    name: str
    nbytes: int

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"a unit cannot hold {self.nbytes} bytes: {self.name}")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to evict, from which figures it follows, and why.

    Attributes:
        evict: names of the units to evict, in ladder order.
        need: bytes that the encoder needs when nothing is lent to it, the margin included.
        free: bytes that were free.
        deficit: what is missing, `max(0, need + debt - free)`.
        lent: bytes that the evicted units give.
        outside: bytes that the encoder needs beside the lent ones, the margin included.
        shortfall: bytes still missing with them; 0 when the encoder fits.
        restore_seconds: predicted time to bring them back; None where the link's speed is not known.
        reason: one sentence with the figures.
    """

    evict: tuple[str, ...]
    need: int
    free: int
    deficit: int
    lent: int
    shortfall: int
    restore_seconds: float | None
    reason: str
    outside: int = 0


def plan(
    need: Need,
    free: int,
    ladder: Sequence[Rung],
    *,
    layers: int = -1,
    margin: float = 0.05,
    link_rate: int | None = None,
    debt: int = 0,
    extra: int = 0,
) -> Plan:
    """The smallest prefix of the ladder that covers what is missing.

    Args:
        need: bytes that the encoder needs; or a function that gives, for `lent` contiguous lent bytes, the bytes it
            needs OUTSIDE them (non-increasing in `lent`; where it is not, its running minimum is taken).
        free: bytes that are free now.
        ladder: units in the order in which they are given up.
        layers: -1 adaptive; 0 never evicts; N evicts exactly the first N units, or all if there are fewer.
        margin: the share by which the need is raised, rounded up to whole bytes. Lent bytes are not worth more for
            it: a need of n is met by `ceil(n * (1 + margin))` lent bytes.
        link_rate: bytes a second from host to card, for the predicted cost.
        debt: bytes by which the process is over its budget already; the first of the lent bytes pay it.
        extra: units evicted beyond that when adaptive, because it was too few before.

    Raises:
        ValueError: a negative size, margin or number of layers.
    """
    if layers < -1 or margin < 0 or min(free, debt, extra) < 0:
        raise ValueError(
            f"layers must be -1 or more, all else 0 or more: layers {layers}, margin {margin}, free {free}, "
            f"debt {debt}, extra {extra}"
        )
    outside = _outside(need, margin)
    lents = [0, *accumulate(rung.nbytes for rung in ladder)]
    total = outside(0)

    def missing(lent: int) -> int:
        """Bytes that must be free beside `lent` lent ones, what the debt has not been paid of included."""
        return outside(max(0, lent - debt)) + max(0, debt - lent) if total else 0

    found = _count(missing, free, lents, layers)
    count = min(found + extra, len(lents) - 1) if layers == -1 else found
    lent = lents[count]
    least = min(missing(bytes_) for bytes_ in lents[: count + 1])
    figures = _Figures(total, free, debt, lent, max(0, least - free), layers, count, len(ladder), count - found)
    return Plan(
        evict=tuple(rung.name for rung in ladder[:count]),
        need=total,
        free=free,
        deficit=max(0, total + debt - free) if total else 0,
        lent=lent,
        outside=outside(max(0, lent - debt)),
        shortfall=figures.shortfall,
        restore_seconds=lent / link_rate if link_rate else None,
        reason=_reason(figures),
    )


def _outside(need: Need, margin: float) -> Callable[[int], int]:
    """Bytes needed outside `lent` lent bytes, margin included: all is `1 + margin` times as big."""
    factor = 1 + Fraction(repr(float(margin)))  # from the decimal text: 0.05 is then exactly 1/20
    if not callable(need):
        if need < 0:
            raise ValueError(f"need must be 0 or more: {need}")
        total = -(-need * factor.numerator // factor.denominator)
        return lambda lent: max(0, total - lent)

    def outside(lent: int) -> int:
        bare = int(need(lent * factor.denominator // factor.numerator))
        return max(0, -(-bare * factor.numerator // factor.denominator))

    return outside


def _count(missing: Callable[[int], int], free: int, lents: list[int], layers: int) -> int:
    """How many rungs are given up."""
    if layers >= 0:
        return min(layers, len(lents) - 1)
    best, least = 0, missing(0)
    for count, lent in enumerate(lents):
        wanted = missing(lent)
        if wanted <= free:
            return count
        if wanted < least:
            best, least = count, wanted
    return best  # nothing covers it: the smallest prefix that comes closest


@dataclass(frozen=True, slots=True)
class _Figures:
    need: int
    free: int
    debt: int
    lent: int
    shortfall: int
    layers: int
    count: int
    rungs: int
    extra: int


def _reason(f: _Figures) -> str:
    deficit = max(0, f.need + f.debt - f.free) if f.count and f.layers < 0 and not (f.shortfall or f.extra) else 0
    need, free, lent, shortfall, missing = _apart(f.need, f.debt or f.free, f.lent, f.shortfall, deficit)
    figures = f"the encoder needs {need} and {free} are free"
    if f.debt:
        figures = f"the encoder needs {need} and the card is {free} over its budget"
    units = _units(f.count)
    if f.layers == 0:
        end = f", {shortfall} too few" if f.shortfall else ""
        return f"Nothing is evicted because swapping is off: {figures}{end}."
    if f.layers > 0:
        end = f"; {shortfall} are still missing" if f.shortfall else ""
        fewer = "" if f.count == f.layers else f", all that there are of the {f.layers}"
        return f"Evicting {units} as told{fewer}, which lends {lent}: {figures}{end}."
    if f.shortfall:
        what = f"all {units}" if f.count == f.rungs else units
        lend = f"evicting {what} lends {lent}" if f.count else "there is nothing to evict"
        return f"It does not fit: {figures}, {lend}, and {shortfall} are still missing."
    if f.extra:
        return f"Evicting {units} lends {lent}, {f.extra} more than it takes because of an earlier spill: {figures}."
    if not f.count:
        return f"Nothing is evicted because {figures}."
    return f"Evicting {units} lends {lent} because {figures}, {missing} too few."


def _apart(*sizes: int) -> tuple[str, ...]:
    """As text, so that what differs reads differently; zeros stand for what is not printed."""
    printed = tuple(dict.fromkeys(size for size in sizes if size))
    told = {0: "0 B", **dict(zip(printed, format_apart(*printed)))}
    return tuple(told[size] for size in sizes)


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"
