"""What a window did, in bytes and milliseconds. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WindowReport:
    """One window, from its plan to its restore.

    Attributes:
        opened: whether anything was evicted.
        reason: one sentence with the figures that decided it.
        need, free, deficit: bytes, as in the plan.
        evicted: names of the units, in ladder order.
        evicted_bytes, restored_bytes: bytes given up, and bytes that are back.
        restore_ms: from the first copy's begin to the last copy's end.
        restore_hidden_ms: the part of it in which no computation had to wait for a unit.
        spilled_bytes: bytes that the code inside took beyond lent and free ones (simulated card; 0 elsewhere).
        peak_measured: most bytes alive at once inside the window; 0 where it was not measured.
    """

    opened: bool
    reason: str
    need: int
    free: int
    deficit: int
    evicted: tuple[str, ...] = ()
    evicted_bytes: int = 0
    restored_bytes: int = 0
    restore_ms: float = 0.0
    restore_hidden_ms: float = 0.0
    spilled_bytes: int = 0
    peak_measured: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return asdict(self)
