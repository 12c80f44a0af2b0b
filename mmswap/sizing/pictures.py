"""What pictures of any size cost a model's vision tower: traced on shapes, remembered, and joined by a curve.

pictures = Pictures(blueprint, dry_run)
cost = pictures.cost(1344, 1344, images=2);  cost.need(lent)
pictures.curve().at(patches)
"""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.blueprint import Blueprint, Picture
from mmswap.swap.dry_run import DryRun
from mmswap.swap.fit import fit
from mmswap.swap.peak import Peak
from mmswap.vision.cache import tensor_bytes
from mmswap.vision.encoder import run_tower
from mmswap.vision.tower import Call

_EDGES = (336, 672, 1344)  # pixels of the longer side of what the curve is laid through
_SMALL = 672
_EVENTS = 30_000  # allocations and releases that are traced for a confirmation


@dataclass(frozen=True, slots=True)
class Cost:
    """Pictures of one size in one tower call; bytes.

    Attributes:
        pixels: of what the processor made of them. features: of what the tower makes of that. peak: in between.
    """

    width: int
    height: int
    images: int
    picture: Picture
    pixels: int
    features: int
    peak: Peak

    @property
    def total(self) -> int:
        """Bytes that must be free when nothing is lent."""
        return self.need(0)

    def need(self, lent: int) -> int:
        """Bytes outside of `lent` lent ones: peak, pixels, and the features that are copied out."""
        return self.peak.beyond(lent) + self.pixels + self.features


class Pictures:
    """The vision side of one model. Args: dry_run: of the whole model, with the card's allocator policy."""

    def __init__(self, blueprint: Blueprint, dry_run: DryRun) -> None:
        self._blueprint = blueprint
        self._dry_run = dry_run
        self._patches: dict[tuple[int, int, int], int] = {}
        self._costs: dict[tuple[int, int, int], Cost] = {}
        self._sampled = False

    def patches(self, width: int, height: int, images: int = 1) -> int:
        """Of such pictures; the model itself is asked only where it decides."""
        key = (width, height, images)
        if key not in self._patches:
            known = self._costs.get(key)
            self._patches[key] = known.picture.patches if known is not None else self._blueprint.patches(*key)
        return self._patches[key]

    def cost(self, width: int, height: int, images: int = 1) -> Cost:
        """Traced."""
        key = (width, height, images)
        if key not in self._costs:
            picture = self._blueprint.picture(*key, encode=lambda call: self._peak(call).result)
            peak = self._peak(picture.call)
            pixels = tensor_bytes((picture.call.args, picture.call.kwargs))
            self._costs[key] = Cost(width, height, images, picture, pixels, peak.output, peak)
        return self._costs[key]

    def _peak(self, call: Call) -> Peak:
        return self._dry_run.tower_peak(run_tower, call)

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
