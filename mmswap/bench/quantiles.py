"""What many runs took, in three numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The values below which 20, 50 and 80 of 100 runs lie, in the unit of the samples."""

    p20: float
    p50: float
    p80: float

    def rate(self, count: float) -> Spread:
        """`count` over seconds: a second's worth, slowest runs first."""
        return Spread(count / self.p80, count / self.p50, count / self.p20)


def spread(samples: Sequence[float]) -> Spread:
    """Raises ValueError: no samples."""
    if not samples:
        raise ValueError("there is nothing to take the middle of.")
    if len(samples) == 1:
        return Spread(samples[0], samples[0], samples[0])
    cuts = statistics.quantiles(samples, n=10, method="inclusive")
    return Spread(cuts[1], cuts[4], cuts[7])
