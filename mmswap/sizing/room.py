"""The card that a plan is made for: how large it is, what of it cannot be used and why, how fast its link is.

    room = room_of("RX 7900 XT", reserve=None, limit=None, link=None)
    room.total, room.held, room.link_rate

A card by name and a simulated one need no device; `cuda` and `cuda:1` are read now.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.card.known import KnownCard, known_card
from mmswap.errors import OptionError
from mmswap.units import MIB, format_bytes

DESKTOP = 930 * MIB  # what a Windows desktop and one GPU process's context held of a 16 GB card, by its DXGI budget
LINK = 24_000_000_000  # a large copy from pinned host memory over PCIe 4.0 x16
_OURS = ("auto", "cpu", "cuda", "sim")


@dataclass(frozen=True, slots=True)
class Room:
    """A card for a plan.

    Attributes:
        name: for people. total: bytes. held: bytes that are not to be had, by cause.
        link_rate: bytes a second from the host. segments: whether its allocator takes memory in whole segments,
            as torch's does; a simulated card takes exactly what it is asked for.
        swaps: whether giving up weights makes room there. reasons: where the figures come from.
        kernels: whose are asked what they take for themselves; empty where rules tell, as the card is not here.
    """

    name: str
    total: int
    held: dict[str, int]
    link_rate: int
    segments: bool
    swaps: bool
    reasons: tuple[str, ...]
    kernels: str = ""

    @property
    def usable(self) -> int:
        return self.total - sum(self.held.values())


def room_of(spec: str, *, reserve: int | None = None, limit: int | None = None, link: int | None = None) -> Room:
    """The room on the card that `spec` names.

    Args:
        spec: `sim:16GiB@24GB/s`, a card's name, `cuda`, `cuda:1`, `auto` or `cpu`.
        reserve: bytes that others hold; None: nothing of a simulated card, `DESKTOP` of a card by name.
        limit: bytes that the process may use, as `--vram-limit`. link: bytes a second, instead of the card's own.

    Raises:
        OptionError: there is no such card.
    """
    if spec.partition(":")[0].strip() in _OURS:
        return _opened(spec.strip(), reserve, limit, link)
    return _by_name(known_card(spec), reserve, limit, link)


def _by_name(card: KnownCard, reserve: int | None, limit: int | None, link: int | None) -> Room:
    taken = DESKTOP if reserve is None else reserve
    where = "what one Windows desktop was seen to hold; --reserve says otherwise" if reserve is None else "as asked"
    reasons = [
        f"{card.name}: {format_bytes(card.total)}, {card.bandwidth / 1e9:.0f} GB/s, {card.link} ({_publisher(card)}).",
        f"{format_bytes(taken)} of it are left to the desktop and the driver: {where}.",
    ]
    if card.shared:
        reasons.append(
            f"{card.name} has no memory of its own; {format_bytes(card.total)} is the most that it is given."
        )
    held = {"desktop and driver": taken}
    rate = _rate(link, card.link_rate, reasons)
    return Room(card.name, card.total, _held(card.total, held, limit, reasons), rate, True, True, tuple(reasons))


def _publisher(card: KnownCard) -> str:
    """Whose pages the figures are from; `known.json` says which ones."""
    return card.source.partition(" (")[0].partition(":")[0]


def _opened(spec: str, reserve: int | None, limit: int | None, link: int | None) -> Room:
    from mmswap.card.opening import open_card

    card = open_card(spec)
    total, reading = card.total(), card.free()
    reasons = [f"{card.name}: {reading.reason}."]
    if card.spec.startswith("sim:"):
        reasons = [
            f"{card.name}, with nothing of this model on it yet; its allocator takes exactly the bytes it is asked for."
        ]
        card.claim("all of it", total)  # a budget may fall as the card fills: this is what is left of it then
        held = {"beyond the budget": card.overfull()}
    else:
        held = {"in use already": max(0, total - reading.bytes)}
        if card.choice:
            reasons.append(f"This card is taken because {card.choice}.")
    if reserve is not None:
        held["desktop and driver"] = reserve
    kept = _held(total, {name: size for name, size in held.items() if size}, limit, reasons)
    if not card.can_swap:
        reasons.append(f"Nothing can be evicted: {card.name} has no memory of its own to make room in.")
    rate = _rate(link, card.link_rate(), reasons if card.can_swap else [])  # nothing would cross it
    real = card.device.type == "cuda"
    return Room(card.name, total, kept, rate, real, card.can_swap, tuple(reasons), card.name if real else _host())


def _host() -> str:
    from mmswap.swap.meter import CpuMeter

    return CpuMeter().identity()


def _held(total: int, held: dict[str, int], limit: int | None, reasons: list[str]) -> dict[str, int]:
    taken = sum(held.values())
    if taken >= total and "desktop and driver" in held:
        raise OptionError(f"--reserve leaves nothing of the card's {format_bytes(total)}: give less.")
    if limit is not None and limit < total - taken:
        reasons.append(f"--vram-limit allows {format_bytes(limit)} of {format_bytes(total)}.")
        return {**held, "above --vram-limit": total - taken - limit}
    return held


def _rate(asked: int | None, own: int | None, reasons: list[str]) -> int:
    if asked is not None:
        reasons.append(f"The link is taken as {asked / 1e9:.1f} GB/s, as asked.")
        return asked
    if own is None:
        reasons.append(f"The link is taken as {LINK / 1e9:.0f} GB/s, as PCIe 4.0 x16 gives; --link says otherwise.")
    return own or LINK
