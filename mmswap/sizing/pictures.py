"""What pictures of any size cost a model's vision tower: as traced, and joined by a curve. Knows no torch.

pictures = Pictures(facts)
cost = pictures.cost(1344, 1344, images=2);  cost.need(lent)
pictures.predicted(patches, cost)
"""

from __future__ import annotations

from mmswap.sizing.facts import Cost, Facts, Size
from mmswap.swap.fit import fit

_EDGES = (336, 672, 1344)  # pixels of the longer side of what the curve is laid through
_SMALL = 672
_EVENTS = 16_000  # allocations and releases that are traced for a confirmation


class Pictures:
    """The vision side of one model in one plan."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._patches: dict[Size, int] = {}
        self._costs: dict[Size, Cost] = {}
        self._sampled = False

    def patches(self, width: int, height: int, images: int = 1) -> int:
        """Of such pictures; the model itself is asked only where it decides."""
        size = (width, height, images)
        if size not in self._patches:
            known = self._costs.get(size)
            self._patches[size] = known.picture.patches if known is not None else self._facts.patches(size)
        return self._patches[size]

    def cost(self, width: int, height: int, images: int = 1) -> Cost:
        """Traced."""
        size = (width, height, images)
        if size not in self._costs:
            self._costs[size] = self._facts.cost(size)
        return self._costs[size]

    def predicted(self, patches: int, near: Cost) -> int:
        """`Cost.total` by the curve through all that was traced, which is made to go through `near`."""
        self._sample(near)
        curve = fit((cost.picture.patches, cost.total) for cost in self._costs.values())
        return -(-curve.at(patches) * near.total // curve.at(near.picture.patches))

    def confirms(self, patches: int, near: Cost) -> bool:
        """Whether a picture of so many patches is traced in little time: some towers work window by window."""
        return len(near.peak.events) * patches <= _EVENTS * near.picture.patches

    def _sample(self, near: Cost) -> None:
        """Small sizes of the same ratio for the curve, and a middle one where the picture itself is small."""
        if self._sampled:
            return
        self._sampled = True
        edge = max(near.width, near.height)
        for wanted in _EDGES:
            size = [-(-side * wanted // edge) for side in (near.width, near.height)]  # never narrower than the ratio
            if wanted <= _SMALL or 2 * near.picture.patches < self.patches(size[0], size[1], near.images):
                self.cost(size[0], size[1], near.images)
