"""From what the sources say to what this process may still take. Pure arithmetic over ints: knows no torch, no driver.

    Reading(bytes, reason) = accelerator_free(total=..., driver=(free, total), reserved=..., allocated=..., idle=...)

Every figure comes with the reason of the source that decided it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.units import format_bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that can still be taken without spilling, why it is that many, and whether a source was distrusted."""

    bytes: int
    reason: str
    doubtful: bool = False


def accelerator_free(
    *, total: int, driver: tuple[int, int] | str, reserved: int, allocated: int, idle: int = 0
) -> Reading:
    """What a process can still allocate on a `torch.cuda` device.

    Args:
        total: bytes of the card by its properties.
        driver: `(free, total)` of `mem_get_info`, or the sentence of the error that it raised.
        reserved: bytes that torch's allocator holds.
        allocated: the part of them that tensors use.
        idle: unused bytes inside private memory pools: reserved, and out of reach for everybody else.
    """
    cached = max(0, reserved - allocated - idle)
    complaint = driver if isinstance(driver, str) else _complaint(*driver)
    if complaint:
        rest = max(0, total - reserved)
        return Reading(
            rest + cached,
            f"the driver's figure cannot be used ({complaint}), so free is the card's {format_bytes(total)} less "
            f"{format_bytes(reserved)} reserved by this process, plus {format_bytes(cached)} that its allocator caches",
            doubtful=True,
        )
    free = int(driver[0])
    return Reading(
        free + cached,
        f"the driver reports {format_bytes(free)} free, and this process's allocator caches {format_bytes(cached)}",
    )


def simulated_free(capacity: int, claims: dict[str, int]) -> Reading:
    """What is left of a simulated card once everything that is claimed has been taken off."""
    claimed = sum(claims.values())
    listing = ", ".join(f"{label} {format_bytes(size)}" for label, size in claims.items() if size) or "nothing"
    if claimed > capacity:
        return Reading(
            0, f"the simulated card of {format_bytes(capacity)} is over-full by {claimed - capacity} bytes: {listing}"
        )
    return Reading(
        capacity - claimed, f"the simulated card has {format_bytes(capacity)}, of which are claimed: {listing}"
    )


def _complaint(free: int, total: int) -> str:
    if total <= 0:
        return "it reports a card of 0 bytes"
    if not 0 <= free <= total:
        return f"it reports {free} bytes free of {total}"
    return ""
