"""The largest picture of a ratio that a question allows, asked of as few real sizes as possible. Knows no model.

Pictures are told apart by their longer side; what they cost follows from their patches, which grow with it in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mmswap.sizing.limits import largest

_AROUND = 32  # pixels of the longer side around a guess; a cell of a tower is no larger


@dataclass(frozen=True, slots=True)
class Scale:
    """Pictures of one ratio, by their longer side."""

    width: int
    height: int

    @property
    def edge(self) -> int:
        return max(self.width, self.height)

    def size(self, edge: int) -> tuple[int, int]:
        """(width, height) for a longer side of `edge`; never narrower than the ratio: some families refuse that."""
        return -(-self.width * edge // self.edge), -(-self.height * edge // self.edge)

    def edge_of(self, pixels: int) -> int:
        """The longer side of the largest picture of at most `pixels`."""
        edge = max(1, math.isqrt(pixels * self.edge**2 // (self.width * self.height)) + 1)
        while edge > 1 and math.prod(self.size(edge)) > pixels:
            edge -= 1
        return edge


def largest_edge(most: int, patches: Callable[[int], int], limit: int, known: int) -> int:
    """The longest side up to `most` whose picture has at most `limit` patches; 0 if there is none.

    Args:
        known: a side whose patches are a good measure of others', below any cap.
    """
    if patches(most) <= limit:
        return most
    guess = min(most, max(1, math.isqrt(limit * known * known // max(1, patches(known)))))
    low, high = max(1, guess - _AROUND), min(most, guess + _AROUND)
    low = low if patches(low) <= limit else 1
    high = high if patches(high) > limit else most
    return largest(low, high, lambda edge: patches(edge) <= limit) or 0
