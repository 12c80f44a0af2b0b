"""What a model's weights come to: bytes by group, and what may give way. Knows no torch; `groups.py` finds them."""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.swap.plan import Rung

TOWER, PROJECTOR, EMBEDDINGS = "vision tower", "projector", "embeddings"
LAYERS, HEAD, NORMS, REST = "decoder layers", "output head", "norms", "other weights"
GROUPS = (TOWER, PROJECTOR, EMBEDDINGS, LAYERS, HEAD, NORMS, REST)


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model's weights.

    Attributes:
        groups: bytes by name, in the order of `GROUPS`; 0 where a model has none of it.
        ladder: what may give way, in that order: an untied output head, then the layers from the last backwards.
        unpacked: bytes of the largest quantised matrix in full precision, which a prefill step makes; 0 without any.
        tied: whether head and embeddings are one tensor (which stays).
    """

    groups: dict[str, int]
    ladder: tuple[Rung, ...]
    unpacked: int
    tied: bool

    @property
    def total(self) -> int:
        return sum(self.groups.values())

    @property
    def vision(self) -> int:
        return self.groups[TOWER] + self.groups[PROJECTOR]
