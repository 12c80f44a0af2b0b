"""One tower call with what is known of it, before it runs and after. Values; knows no card and no window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmswap.swap.peak import Peak
from mmswap.swap.report import WindowReport
from mmswap.vision.cache import content_key, tensor_bytes
from mmswap.vision.tower import Call


@dataclass(frozen=True, slots=True)
class Encoded:
    """Features of all pictures of one prompt, and what they cost; bytes and milliseconds.

    `peak_predicted` is what a measurement on that card should show, corrections included: on a simulated card and on
    the host that leaves out what kernels take inside one op. `report()` is final once everything is restored.
    """

    features: Any
    peak_predicted: int
    encode_ms: float
    report: Callable[[], WindowReport]


@dataclass(frozen=True, slots=True)
class Job:
    """One tower call with what is known of it before it runs.

    `extra`: bytes by which earlier runs on this card corrected the prediction; below 0 where they agree on less.
    """

    call: Call
    peak: Peak
    extra: int = 0

    @property
    def key(self) -> str:
        """Of everything that the tower is called with: under it the features are kept."""
        return content_key((self.call.args, self.call.kwargs))

    @property
    def inputs(self) -> int:
        return tensor_bytes((self.call.args, self.call.kwargs))

    def need(self, lent: int, kept: int) -> int:
        """Bytes outside of `lent` lent ones: the call's own, its inputs, and `kept` bytes of features copied out.

        What a correction adds is taken from the lent bytes first.
        """
        more, less = max(0, self.extra), max(0, -self.extra)
        own = self.peak.beyond(max(0, lent - more)) + max(0, more - lent)
        return max(0, own - less) + self.inputs + kept

    @property
    def shape(self) -> str:
        """Calls of the same layouts need the same bytes: `bfloat16[4096,1176] int64[1,3]`."""
        tensors: list[str] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes = ",".join(str(size) for size in tensor.shape)
            tensors.append(f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]")
            return tensor

        self.call.mapped(note)
        return " ".join(tensors)
