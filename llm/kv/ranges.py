"""Offsets and scales by which keys and values are quantised, from what is seen of them.

    ranges = Ranges.seen(kind, k, v);  wider = ranges.holding(kind, more_k, more_v)      # None: they hold it already

Keys: an offset and a scale for each channel. int8 takes the middle and half the width of what was seen; fp8 takes the
mean (or what was measured beforehand) and one power of two for a head, with room above. Values: fp8 has one scale for a
head; int8 has none here, for the store writes one for each token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmswap.llm.kv.kinds import Kind

FEW = 16  # tokens that tell too little of a channel: the whole key must fit then, not what an offset leaves of it
UNEVEN = 32.0  # times that a channel may be larger than most of its head before 8-bit floats lose the others
_WIDER = 1.25  # a channel that must widen gets more than it needs, so that it seldom has to


@dataclass(frozen=True, slots=True)
class Ranges:
    """`k_offset`, `k_scale` [heads, D], `v_scale` [heads, 1]; in float32. `scales_only`: no offset is known."""

    k_offset: Tensor
    k_scale: Tensor
    v_scale: Tensor
    scales_only: bool = False

    @classmethod
    def seen(
        cls,
        kind: Kind,
        k: Tensor,
        v: Tensor,
        *,
        offsets: bool = True,
        middle: Tensor | None = None,
        many: bool = False,
    ) -> Ranges:
        """Such that `k` and `v` [B, heads, T, D] fit.

        Args:
            offsets: keys are stored less an offset. middle: that offset, where it is known.
            many: the tokens span what a long text holds, however few they are.
        """
        keys = _finite(k)
        low, high = keys.amin((0, 2)), keys.amax((0, 2))
        offset = torch.zeros_like(low)
        if offsets:
            usual = keys.mean((0, 2)) if kind.float8 else (low + high) / 2
            offset = usual if middle is None else middle.to(usual)
        reach = torch.maximum(high - offset, offset - low)
        tokens = k.shape[0] * k.shape[2]
        if tokens < FEW and not many:
            reach = torch.maximum(reach, torch.maximum(high.abs(), low.abs()))
        if not kind.float8 and not many:
            reach = reach * (1 + FEW / 2 / max(tokens, FEW))  # few tokens seldom show the width of a channel
        if kind.float8:
            reach = reach.amax(-1, keepdim=True).expand_as(reach)
        largest = _finite(v).abs().amax((0, 2, 3))[:, None]
        return cls(offset, _scale(kind, reach, kind.headroom), _scale(kind, largest, kind.headroom))

    def holding(self, kind: Kind, k: Tensor, v: Tensor) -> Ranges | None:
        """Wider ones if `k` or `v` do not fit into these; None if they do."""
        keys, edge = _finite(k), self.k_scale * kind.largest * (1 + 1e-6)
        low, high = keys.amin((0, 2)), keys.amax((0, 2))
        beyond = torch.maximum(high - self.k_offset, self.k_offset - low) > edge
        largest = _finite(v).abs().amax((0, 2, 3))[:, None]
        above = largest > self.v_scale * kind.largest
        if not bool(beyond.any() if kind.scaled_tokens else beyond.any() | above.any()):
            return None
        v_scale = torch.where(above, _scale(kind, largest, 2.0), self.v_scale)
        if kind.float8:
            reach = torch.maximum(high - self.k_offset, self.k_offset - low).amax(-1, keepdim=True)
            return replace(self, k_scale=torch.maximum(self.k_scale, _scale(kind, reach, 2.0)), v_scale=v_scale)
        low, high = torch.minimum(low, self.k_offset - edge), torch.maximum(high, self.k_offset + edge)
        offset = (low + high) / 2 if bool(self.k_offset.any()) else self.k_offset
        scale = _scale(kind, torch.maximum(high - offset, offset - low), _WIDER)
        k_offset, k_scale = torch.where(beyond, offset, self.k_offset), torch.where(beyond, scale, self.k_scale)
        return replace(self, k_offset=k_offset, k_scale=k_scale)

    def wider(self, beyond: Tensor) -> Ranges:
        """With half as much room again in the channels [heads, D] that are `beyond` theirs."""
        return replace(self, k_scale=torch.where(beyond, self.k_scale * 1.5, self.k_scale))

    def at(self, heads: int, width: int, device: torch.device) -> Ranges:
        """The same on `device`, in full shape.

        Raises:
            ValueError: they are for other heads.
        """
        shapes = ((heads, width), (heads, width), (heads, 1))
        try:
            parts = zip((self.k_offset, self.k_scale, self.v_scale), shapes)
            k_offset, k_scale, v_scale = (part.to(device).expand(shape) for part, shape in parts)
            return Ranges(k_offset, k_scale, v_scale)
        except RuntimeError:
            raise ValueError(f"they are for heads {list(self.k_offset.shape)}, not {[heads, width]}") from None


def unevenness(kind: Kind, k: Tensor, v: Tensor, ranges: Ranges) -> float:
    """By how much the largest channel of a head exceeds most others, offsets taken off; 0 where it does no harm.

    8-bit floats round a large number by more than a small one holds. A query that is small where the key is large
    makes up for it, but not where positions turn the two channels into each other: then the small ones drown.
    """
    if not kind.float8:
        return 0.0
    reach = (_finite(k) - ranges.k_offset[:, None]).abs().amax((0, 2))
    found = [reach]
    if kind.largest > 1000:  # two bits of fraction: values too
        found.append(_finite(v).abs().amax((0, 2)))
    tiny = torch.finfo(torch.float32).tiny
    return max(float((part.amax(-1) / part.median(-1).values.clamp_min(tiny)).max()) for part in found)


def _finite(x: Tensor) -> Tensor:
    """In float32, what is no number as 0: it may cost its own place, not that of every token beside it."""
    return torch.nan_to_num(x.float(), nan=0.0, posinf=0.0, neginf=0.0)


def _scale(kind: Kind, reach: Tensor, room: float) -> Tensor:
    """What one step is worth when `reach` times `room` is the largest number; for a float a power of two."""
    scale = torch.where(reach > 0, reach, torch.ones_like(reach)) * room / kind.largest
    if not kind.float8:
        return scale
    return torch.exp2(torch.ceil(torch.log2(scale)))
