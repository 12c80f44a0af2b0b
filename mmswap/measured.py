"""Predicted beside measured, for people and for /metrics: the weights at load, the encoder at each prompt.

Values only: `Runtime.measurements()` fills them in. Sizes are bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmswap.card.spill import SpillCount
from mmswap.swap.report import WindowReport

KEPT = 256  # prompts whose peaks are remembered


@dataclass(frozen=True, slots=True)
class Load:
    """What loading came to.

    Attributes:
        weights_predicted: by arithmetic before any was read, in the dtype that runs or in 4 bits, without a tower that
            stays on the host.
        weights_measured: by which the card's free bytes went down; on the processor, bytes of the tensors there are.
        free: what was left then.
        over: bytes by which the card was over its budget then.
        context: tokens. kv_bytes: of the KV cache that so many take.
    """

    weights_predicted: int
    weights_measured: int
    free: int
    over: int
    context: int
    kv_bytes: int

    def as_dict(self) -> dict[str, int]:
        """The fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EncodePeak:
    """One prompt's encoder run: patches of all its pictures, and the peak of the call."""

    patches: int
    peak_predicted: int
    peak_measured: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything so far. `peaks` are the last prompts' with pictures that were really encoded, oldest first."""

    load: Load
    peaks: tuple[EncodePeak, ...]
    windows: int
    units_evicted: int
    bytes_evicted: int
    bytes_restored: int
    spill: SpillCount

    def as_dict(self) -> Mapping[str, Any]:
        """Nested names and numbers, for JSON and metrics."""
        return asdict(self)


class Tally:
    """Adds prompts up."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._peaks: deque[EncodePeak] = deque(maxlen=KEPT)
        self._windows = self._units = self._evicted = self._restored = 0

    def add(self, window: WindowReport, peak: EncodePeak | None) -> None:
        """One prompt is over; `peak` where pictures were encoded."""
        self._windows += window.opened
        self._units += len(window.evicted)
        self._evicted += window.evicted_bytes
        self._restored += window.restored_bytes
        if peak is not None:
            self._peaks.append(peak)

    def so_far(self, spill: SpillCount) -> Measurements:
        return Measurements(
            self.load, tuple(self._peaks), self._windows, self._units, self._evicted, self._restored, spill
        )
