"""A card on host memory: a capacity, a link speed, a budget and a ledger of who holds what. A test and planning
instrument.

    card = SimulatedCard("sim:16GiB@24GB/s");  card.claim("language model", nbytes);  card.free().bytes
    card = SimulatedCard("sim:16368MiB+wddm")        # the budget falls as the card fills, as Windows' does

Nothing it says is a measurement of real hardware.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from mmswap.card.base import Card
from mmswap.card.budget import Reading, simulated_free
from mmswap.card.spill import Spill
from mmswap.errors import OptionError, told
from mmswap.units import format_bytes, parse_bytes, parse_rate

SMALLEST = 256  # bytes; a bare number below is a size whose unit was forgotten
WDDM = "wddm"
_SPEC = re.compile(r"sim:([^@+]+)(?:\+([^@+]*))?(?:@([^@+]+))?(?:\+([^@+]*))?")
_HOW_TO = "write for example sim:16GiB, sim:16GiB@24GB/s or sim:16GiB+wddm@24GB/s"

# One AMD card under Windows (MiB): its size, the budget while the process is small, and what is left of it once the
# process holds so much. The budget was whole at 10240 and reduced at 11264.
_CARD, _SMALL, _FILLED, _HELD = 16368, 15569, 14540, 11264

Budget = Callable[[int], int]
"""`held -> bytes that the process may use in all`, asked at every reading."""


class SimulatedCard(Card):
    """`--card sim:SIZE[+wddm][@LINK]`.

    Args:
        budget: what the process may use, the bytes that it holds given: a function, or one figure. It may move at any
            time, or raise: then the last one that was known stands. None: the whole card, or Windows' fall where the
            spec says `+wddm`.
        vram_limit: no more than so many bytes, whatever the budget says.

    Attributes:
        claims: bytes booked under each label, in the order in which they were first booked.
        budget: as above; may be replaced at any time.
    """

    def __init__(self, spec: str, budget: Budget | int | None = None, vram_limit: int | None = None) -> None:
        size, falls, link = _parts(spec)
        try:
            self.capacity = parse_bytes(size)
            self._link = parse_rate(link) if link else None
        except ValueError as error:
            raise OptionError(f"--card {spec}: {error}") from None
        if self.capacity < SMALLEST:
            raise OptionError(f"--card {spec}: a card of {self.capacity} bytes? Write the unit, for example sim:16GiB.")
        self.spec = spec
        self.name = f"simulated card of {format_bytes(self.capacity)}"
        self.device = torch.device("cpu")
        self.can_swap = True
        self.choice = "a simulated card was asked for"
        self.claims: dict[str, int] = {}
        self.budget: Budget | int | None = falling(self.capacity) if falls and budget is None else budget
        self._limit = vram_limit
        self._known: int | None = None
        self._doubt = ""

    def total(self) -> int:
        return self.capacity

    def free(self) -> Reading:
        allowed = self._allowed()
        by_user = self._limit is not None and allowed == self._limit
        bound = "a --vram-limit" if by_user else "a budget"
        reading = simulated_free(self.capacity, dict(self.claims), budget=allowed, bound=bound)
        return replace(reading, doubtful=True, reason=reading.reason + self._doubt) if self._doubt else reading

    @contextmanager
    def placed(self, label: str, nbytes: int) -> Iterator[bool]:
        """Claims the bytes for the time of the block: a ledger can always be written to, and `over` tells the rest."""
        name = f"{label} (placed to see)"
        try:
            self.claim(name, nbytes)
            yield True
        finally:
            self.release(name)

    def spilled(self) -> Spill:
        """What is claimed beyond the budget lies in host memory; what runs in a window is counted there."""
        return Spill(self.overfull(), "the claims exceed what the process may use", "the simulated card's ledger")

    def overfull(self) -> int:
        allowed = self._allowed()
        held = sum(tuple(self.claims.values()))
        return max(0, held - (self.capacity if allowed is None else min(self.capacity, allowed)))

    def link_rate(self) -> int | None:
        return self._link

    def claim(self, label: str, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"a claim must not be negative: {label} {nbytes}")
        self.claims[label] = nbytes

    def release(self, label: str) -> None:
        self.claims.pop(label, None)

    def _allowed(self) -> int | None:
        held = sum(tuple(self.claims.values()))  # a copy: others may book meanwhile
        try:
            self._known = self.budget(held) if callable(self.budget) else self.budget
            self._doubt = ""
        except Exception as error:
            stands = "the last known one stands" if self._known is not None else "the whole card counts"
            self._doubt = f"; the budget could not be read ({told(error)}), so {stands}"
        bounds = [bound for bound in (self._known, self._limit) if bound is not None]
        return min(bounds) if bounds else None


def falling(capacity: int) -> Budget:
    """Windows' budget on a card of `capacity` bytes: it falls once the process holds 11 of 16 parts of the card."""
    small, filled, held_then = (capacity * part // _CARD for part in (_SMALL, _FILLED, _HELD))
    return lambda held: filled if held >= held_then else small


def _parts(spec: str) -> tuple[str, bool, str]:
    """Size, whether the budget falls, and the link (empty where none is given)."""
    match = _SPEC.fullmatch(spec)
    traits = [trait for trait in (match[2], match[4]) if trait is not None] if match else []
    if match is None or traits not in ([], [WDDM]):
        raise OptionError(f"'{spec}' is not a simulated card: {_HOW_TO}.")
    return match[1], bool(traits), match[3] or ""
