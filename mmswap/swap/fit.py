"""A peak as a function of patches: a + bN + cN^2, with no coefficient below zero. Pure numbers; knows no model.

    fitted = fit([(256, 11_911_728), (1024, 47_646_832), (4096, 190_587_216), (9216, 428_821_168)])
    fitted.at(25_600), fitted.margin, fitted.linear

c near 0 proves that the attention never holds its scores: softmax(QK^T) would be N^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

FLOOR = 0.05  # the smallest margin, whatever the residuals say
_NEGLIGIBLE = Fraction(1, 100)  # share of the peak below which a square term is none
Sample = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes of N patches: `a + b * N + c * N * N`.

    Attributes:
        residual: the largest share by which a sample lay above or below the curve; 0 where it goes through all.
        patches: the largest N that was sampled; beyond it the curve is a guess.
    """

    a: float
    b: float
    c: float
    residual: float
    patches: int = 0

    def at(self, patches: int) -> int:
        """Bytes of `patches` patches, rounded up."""
        return math.ceil(round(self.a + self.b * patches + self.c * patches * patches, 3))

    @property
    def margin(self) -> float:
        """The share to add to a prediction: what the samples strayed by, 5 % at the least."""
        return max(FLOOR, self.residual)

    @property
    def linear(self) -> bool:
        """Whether the square term is less than a hundredth of the peak at the largest sample."""
        return self.c * self.patches**2 <= _NEGLIGIBLE * self.at(self.patches)


def fit(samples: Iterable[Sample]) -> Fit:
    """The curve of least relative squares through (patches, bytes), found in exact arithmetic.

    With fewer different sizes than coefficients the shortest curve is taken that the samples tell apart: one size gives
    a line through 0. A non-negative least-squares problem in three unknowns has its answer on one of the seven sets of
    coefficients that are not 0 (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23); all are tried.

    Raises:
        ValueError: no samples, or one without patches or bytes.
    """
    points = sorted(set(samples))
    if not points or any(patches <= 0 or size <= 0 for patches, size in points):
        raise ValueError("a fit needs samples of (patches > 0, bytes > 0)")
    sizes = len({patches for patches, _ in points})
    best: tuple[Fraction, list[Fraction]] | None = None
    for powers in _subsets(min(sizes, 3)):
        found = _solved(points, powers)
        if found is not None and all(value >= 0 for value in found):
            error = sum(_strayed(found, point) ** 2 for point in points)
            if best is None or error < best[0]:
                best = Fraction(error), found
    assert best is not None  # a line through 0 always serves
    a, b, c = best[1]
    residual = max(abs(_strayed(best[1], point)) for point in points)
    return Fit(float(a), float(b), float(c), float(residual), points[-1][0])


def _subsets(most: int) -> list[tuple[int, ...]]:
    """Sets of powers of N, smaller ones first, so that of two equally good curves the simpler one stays."""
    order = (1, 0, 2)
    return [tuple(sorted(chosen)) for count in range(1, most + 1) for chosen in combinations(order, count)]


def _solved(points: Sequence[Sample], powers: tuple[int, ...]) -> list[Fraction] | None:
    """Coefficients (a, b, c), 0 where the power is not among `powers`; None where the samples do not tell them."""
    count = len(powers)
    rows = [[Fraction(patches**power, size) for power in powers] for patches, size in points]
    table = [[sum((row[i] * row[j] for row in rows), Fraction(0)) for j in range(count)] for i in range(count)]
    for i in range(count):
        table[i].append(sum((row[i] for row in rows), Fraction(0)))
    for i in range(count):  # Gauss and Jordan
        pivot = next((k for k in range(i, count) if table[k][i] != 0), None)
        if pivot is None:
            return None
        table[i], table[pivot] = table[pivot], table[i]
        table[i] = [value / table[i][i] for value in table[i]]
        for k in range(count):
            if k != i:
                table[k] = [mine - table[k][i] * theirs for mine, theirs in zip(table[k], table[i])]
    found = [Fraction(0)] * 3
    for power, row in zip(powers, table):
        found[power] = row[-1]
    return found


def _strayed(curve: Sequence[Fraction], point: Sample) -> Fraction:
    patches, size = point
    return (curve[0] + curve[1] * patches + curve[2] * patches * patches) / size - 1
