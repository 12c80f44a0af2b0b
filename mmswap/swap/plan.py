"""Who has to give way: need, free and ladder in, units and the reason out. Pure functions over ints; knows no torch.

plan(need=700, free=300, ladder=[Rung("layers.7", 256), Rung("layers.6", 256)]).evict == ("layers.7", "layers.6")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from mmswap.units import format_bytes

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
        deficit: what is missing, `max(0, need - free)`.
        lent: bytes that the evicted units give.
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


def plan(
    need: Need,
    free: int,
    ladder: Sequence[Rung],
    *,
    layers: int = -1,
    margin: float = 0.05,
    link_rate: int | None = None,
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

    Raises:
        ValueError: a negative size, margin or number of layers.
    """
    if layers < -1 or margin < 0 or free < 0:
        raise ValueError(f"layers must be -1 or more, margin and free 0 or more: {layers}, {margin}, {free}")
    outside = _outside(need, margin)
    lents = [0, *accumulate(rung.nbytes for rung in ladder)]
    total = outside(0)
    count = _count(outside, free, lents, layers)
    lent = lents[count]
    shortfall = max(0, min(outside(bytes_) for bytes_ in lents[: count + 1]) - free) if total > free else 0
    return Plan(
        evict=tuple(rung.name for rung in ladder[:count]),
        need=total,
        free=free,
        deficit=max(0, total - free),
        lent=lent,
        shortfall=shortfall,
        restore_seconds=lent / link_rate if link_rate else None,
        reason=_reason(total, free, count, len(ladder), lent, shortfall, layers),
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


def _count(outside: Callable[[int], int], free: int, lents: list[int], layers: int) -> int:
    """How many rungs are given up."""
    if layers >= 0:
        return min(layers, len(lents) - 1)
    best, least = 0, outside(0)
    for count, lent in enumerate(lents):
        missing = outside(lent)
        if missing <= free:
            return count
        if missing < least:
            best, least = count, missing
    return best  # nothing covers it: the smallest prefix that comes closest


def _reason(need: int, free: int, count: int, rungs: int, lent: int, shortfall: int, layers: int) -> str:
    figures = f"the encoder needs {format_bytes(need)} and {format_bytes(free)} are free"
    units = "1 unit" if count == 1 else f"{count} units"
    if layers == 0:
        end = f", {format_bytes(shortfall)} too few" if shortfall else ""
        return f"Nothing is evicted because swapping is off: {figures}{end}."
    if layers > 0:
        end = f"; {format_bytes(shortfall)} are still missing" if shortfall else ""
        fewer = "" if count == layers else f", all that there are of the {layers}"
        return f"Evicting {units} as told{fewer}, which lends {format_bytes(lent)}: {figures}{end}."
    if need <= free:
        return f"Nothing is evicted because {figures}."
    deficit = format_bytes(need - free)
    if shortfall:
        what = f"all {units}" if count == rungs else units
        lend = f"evicting {what} lends {format_bytes(lent)}" if count else "there is nothing to evict"
        return f"It does not fit: {figures}, {lend}, and {format_bytes(shortfall)} are still missing."
    return f"Evicting {units} lends {format_bytes(lent)} because {figures}, {deficit} too few."
