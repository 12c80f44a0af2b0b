"""From what the sources say to what this process may still take. Pure arithmetic over ints: knows no torch, no driver.

    Reading(bytes, reason, ...) = true_free([driver(...), own_account(...), wddm(...), ...], cached=...)

A `Source` says how much more could be taken from the driver, or why it cannot be used; the least of them decides, and
what this process's own allocator has cached comes on top: the driver, and everybody else, count it as taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mmswap.units import MIB, format_bytes

UNKNOWN = "unknown, because"
DRIVER = "driver"
OVERRIDE = "--vram-limit"  # the flag with which a person says what the card truly has


@dataclass(frozen=True, slots=True)
class Source:
    """What one source says.

    Attributes:
        bytes: how much more this process could take from the driver; below 0 where it holds too much already; None
            where the source cannot be used.
        reason: the figures behind it; begins with "unknown, because" where `bytes` is None.
        headroom: bytes that must stay free by this source, 0 where it is exact.
        doubtful: whether the source was asked, and lied.
    """

    name: str
    bytes: int | None
    reason: str
    headroom: int = 0
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that can still be taken without spilling, and why it is that many.

    Attributes:
        doubtful: whether a source was distrusted.
        over: bytes by which the process exceeds what it may use already; `bytes` is 0 then.
        sources: everything that was asked, the ones that could not be used too.
    """

    bytes: int
    reason: str
    doubtful: bool = False
    over: int = 0
    sources: tuple[Source, ...] = ()


def true_free(sources: Iterable[Source], *, cached: int | None = None) -> Reading:
    """The least of what the sources allow, each less its headroom, plus what the own allocator caches.

    Args:
        sources: in order of trust; of equals the first decides.
        cached: bytes that this process's allocator holds and that anybody in it can get; None if there is none.
    """
    sources = tuple(sources)
    allowed = [(source.bytes - source.headroom, source) for source in sources if source.bytes is not None]
    doubts = [source for source in sources if source.doubtful]
    if cached is not None:
        sources += (Source("allocator cache", cached, f"this process's allocator caches {format_bytes(cached)}"),)
    if not allowed:
        reason = f"nothing says how much memory the card has, so nothing counts as free; {OVERRIDE} says it"
        return Reading(0, _with_doubts(reason, doubts), True, 0, sources)
    more, decider = min(allowed, key=lambda pair: pair[0])
    free = more + (cached or 0)
    clauses = [decider.reason]
    if decider.headroom:
        clauses.append(f"of which {format_bytes(decider.headroom)} stay free as headroom")
    if cached is not None:
        clauses.append(f"and {sources[-1].reason}")
    if free < 0:
        clauses.append(f"so this process holds {format_bytes(-free)} more than it may")
    return Reading(max(0, free), _with_doubts(", ".join(clauses), doubts), bool(doubts), max(0, -free), sources)


def unknown(name: str, cause: str, *, doubtful: bool = False) -> Source:
    """A source that cannot be used, and why; `doubtful` where it should have been."""
    return Source(name, None, f"{UNKNOWN} {cause}", doubtful=doubtful)


def cause_in(sentence: str) -> str:
    """What follows "unknown, because"; the sentence itself where it does not begin so."""
    return sentence.removeprefix(UNKNOWN).strip()


def driver_says(answer: tuple[int, int] | str, *, total: int, own_only: bool = False) -> Source:
    """The driver's `mem_get_info`.

    Args:
        answer: `(free, total)`, or the sentence of the error that it raised.
        total: bytes of the card by its properties: a driver's total well below it is an aperture of it (APUs).
        own_only: whether it knows this process alone (ROCm on Windows): free == total means then that it knows nothing.
    """
    name = DRIVER
    if isinstance(answer, str):
        return unknown(name, answer, doubtful=True)
    free, size = (int(figure) for figure in answer)
    if size <= 0:
        return unknown(name, f"it reports {free} bytes free of a card of {max(0, size)} bytes", doubtful=True)
    if not 0 <= free <= size:
        return unknown(name, f"it reports {free} bytes free of {size}", doubtful=True)
    if own_only and free == size:
        return unknown(name, f"it reports all {format_bytes(size)} as free, whatever is held", doubtful=True)
    if below(size, total):
        cause = f"it reports a card of {format_bytes(size)}, an aperture of the {format_bytes(total)} that there are"
        return unknown(name, cause, doubtful=True)
    return Source(name, free, f"the driver reports {format_bytes(free)} free")


def own_account(*, total: int, reserved: int) -> Source:
    """The card's size less what this process holds: what is left where no driver says more."""
    name = "own account"
    if total <= 0:
        return unknown(name, f"the card's size is given as {total} bytes", doubtful=True)
    parts = f"{format_bytes(total)} less {format_bytes(reserved)} reserved by this process"
    return Source(name, total - reserved, f"the card has {parts}")


def wddm_lowers(driver: Source, *, total: int, budget: int) -> Source:
    """WDDM's default: the driver's free (or, without it, the own account's) less what Windows keeps from this process.

    Lowered, not replaced by budget - usage: DXGI still counts what HIP has freed and caches.
    """
    if budget <= 0:
        return unknown("WDDM", f"Windows budgets {budget} bytes", doubtful=True)
    if driver.bytes is None:
        return unknown("WDDM", "there is no figure of the driver to lower")
    kept = max(0, total - budget)
    if not kept:
        return Source("WDDM", driver.bytes, f"{driver.reason}, and Windows (WDDM) budgets the whole card")
    budgeted = f"Windows (WDDM) budgets {format_bytes(budget)} of {format_bytes(total)} for this process"
    return Source("WDDM", driver.bytes - kept, f"{driver.reason}, less {format_bytes(kept)}: {budgeted}")


def wddm_bounds(driver: Source, *, budget: int, usage: int) -> Source:
    """WDDM's strict mode: the budget less the process's usage, or the driver's free if that is less, with headroom.

    The headroom is the larger of 512 MiB and budget / 16: with a flat 512 MiB a 12 GB card was seen paging at 11.7 GB.
    """
    if budget <= 0 or usage < 0:
        return unknown("WDDM", f"Windows budgets {budget} bytes and counts {usage} as used", doubtful=True)
    left, reason = (
        budget - usage,
        f"Windows (WDDM) budgets {format_bytes(budget)}, {format_bytes(usage)} of it are used",
    )
    if driver.bytes is not None and driver.bytes < left:
        left, reason = driver.bytes, f"{driver.reason}, less than Windows' budget (WDDM) leaves"
    return Source("WDDM", left, reason, headroom=roomy(budget))


def adapter_leaves(name: str, *, total: int, used: int, regained: int = 0) -> Source:
    """The card's size less what everybody uses of it (PDH, amdgpu's sysfs, NVML).

    Args:
        regained: bytes among `used` that this process's driver would give to it again.
    """
    if total <= 0 or not 0 <= used <= total:
        return unknown(name, f"it reports {used} bytes used of {total}", doubtful=True)
    again = f" ({format_bytes(regained)} of them this process's driver keeps for it)" if regained else ""
    everybody = f"of {format_bytes(total)} all processes use {format_bytes(used)}{again}"
    return Source(name, total - used + regained, f"{name} says that {everybody}")


def host_leaves(available: int | None) -> Source:
    """For a card that lives in the host's memory: what the operating system can still give; None if it does not say.

    With headroom: this process grows in the same memory beside the card's part of it, and when that is gone, the system
    ends processes.
    """
    if available is None or available < 0:
        return unknown("host memory", "the operating system does not say what is available")
    shared = f"the card lives in the host's memory, of which {format_bytes(available)} are available"
    return Source("host memory", available, shared, headroom=roomy(available))


def limit_leaves(*, limit: int, reserved: int, whose: str = OVERRIDE) -> Source:
    """A cap that somebody set for this process, less what it holds."""
    held = f"{whose} allows {format_bytes(limit)}, of which this process holds {format_bytes(reserved)}"
    return Source(whose, limit - reserved, held)


def roomy(size: int) -> int:
    """Headroom beside a figure that others move: the larger of 512 MiB and a sixteenth of it."""
    return max(512 * MIB, size // 16)


def below(size: int, total: int) -> bool:
    """Whether `size` is another size than `total`, and smaller: by more than the sixteenth that drivers keep."""
    return size < total - total // 16


def differs(size: int, total: int) -> bool:
    """Whether two figures are not of the same card: apart by more than the sixteenth that drivers keep."""
    return below(size, total) or below(total, size)


def simulated_free(
    capacity: int, claims: Mapping[str, int], *, budget: int | None = None, bound: str = "a budget"
) -> Reading:
    """What is left of a simulated card once everything that is claimed has been taken off. Exact: no headroom.

    Args:
        budget: what this process may use of it at the moment; None for all.
        bound: what the budget is, for people.
    """
    claimed = sum(claims.values())
    listing = ", ".join(f"{label} {format_bytes(size)}" for label, size in claims.items() if size) or "nothing"
    allowed = capacity if budget is None else max(0, min(capacity, budget))
    less = f" with {bound} of {format_bytes(allowed)}" if allowed < capacity else ""
    over = max(0, claimed - allowed)
    if over:
        reason = f"the simulated card of {format_bytes(capacity)}{less} is over-full by {over} bytes: {listing}"
    else:
        reason = f"the simulated card has {format_bytes(capacity)}{less}, of which are claimed: {listing}"
    return Reading(max(0, allowed - claimed), reason, over=over, sources=(Source("ledger", allowed - claimed, reason),))


def adjusted(reading: Reading, more: int, clause: str) -> Reading:
    """`reading` with `more` bytes (fewer if negative), which first cover what it is over by; `clause` says why."""
    if not more:
        return reading
    free = reading.bytes - reading.over + more
    return replace(reading, bytes=max(0, free), over=max(0, -free), reason=f"{reading.reason}, {clause}")


def _with_doubts(reason: str, doubts: Iterable[Source]) -> str:
    causes = [f"{source.name} cannot be used: {cause_in(source.reason)}" for source in doubts]
    return "; ".join((reason, *causes))
