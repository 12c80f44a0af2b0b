"""What real runs of a tower taught: measured beside predicted, kept in the cache folder, and heeded by later plans.

    experience = Experience(fingerprint)                       # reads what earlier processes kept
    extra, why = experience.extra("bfloat16[4096,1176]", predicted)
    experience.learn("bfloat16[4096,1176]", predicted, measured)

Knows bytes and names of call shapes. One run may only raise a need; that a call needs less is believed once three runs
of the same shapes agree.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mmswap.swap import shelf
from mmswap.swap.profile import Profile
from mmswap.units import format_apart, format_bytes

AGREE = 0.01  # share by which figures may differ and still count as the same; the margin covers more
RUNS = 3  # of the same shapes that must agree before a need is lowered
_KEPT = 256  # call shapes
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Correction:
    """All real runs of one call shape: what was predicted, the least and the most that was measured, how many runs."""

    predicted: int
    least: int
    most: int
    runs: int

    @property
    def settled(self) -> bool:
        """Whether enough runs agree."""
        return self.runs >= RUNS and self.most - self.least <= AGREE * self.most

    @property
    def over(self) -> bool:
        """Whether a run needed more than was predicted."""
        return self.most > (1 + AGREE) * self.predicted

    def joined(self, other: Correction) -> Correction:
        """Both together; the runs of the one that has more, for they may be the same runs."""
        if self.predicted != other.predicted:
            return other
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Correction(self.predicted, least, most, max(self.runs, other.runs))


class Experience:
    """Made once per loaded model. Safe to use from several threads; several processes may share the folder.

    Args:
        fingerprint: of the model, dtype, attention, card and torch; see `profile.fingerprint`.
        profile: the cached profile of the same fingerprint, if there is one: its margin stands in for the fixed 5 %.
    """

    def __init__(self, fingerprint: str, profile: Profile | None = None) -> None:
        self.profile = profile
        self._place = shelf.cache_folder() / f"{fingerprint[:24]}.seen.json"
        self._lock = threading.Lock()
        self._seen = _parsed(shelf.take(self._place) or {})
        sampled = profile.samples if profile is not None else ()
        self._profiled = [
            Correction(one.with_scratch, one.measured, one.measured, 1) for one in sampled if one.measured
        ]

    @property
    def corrections(self) -> dict[str, Correction]:
        """By call shape."""
        return dict(self._seen)

    def margin(self, fixed: float) -> float:
        """The share to add to a need: from the profile's residuals, or `fixed` without a profile."""
        return self.profile.margin if self.profile is not None else fixed

    def extra(self, shape: str, predicted: int) -> tuple[int, str]:
        """Bytes to add to a need of `predicted` bytes (below 0: to take off), and why; 0 and "" without cause.

        A shape that was never run is raised by the worst share that any other shape needed beyond its prediction.
        """
        known = self._seen.get(shape)
        if known is not None and known.over:
            more = known.most - known.predicted
            return more, f"{format_bytes(more)} is added: a run like this took so much more than predicted."
        if known is not None and known.settled and known.most < (1 - AGREE) * known.predicted:
            less = known.predicted - known.most
            return -less, f"{format_bytes(less)} is taken off: {known.runs} runs like this agree that it is not used."
        worst = max(
            (one.most / one.predicted - 1 for one in (*self._seen.values(), *self._profiled) if one.over), default=0
        )
        if known is not None or worst == 0:
            return 0, ""
        more = round(predicted * worst)
        return more, f"{format_bytes(more)} is added: other runs of this tower took {worst:.0%} more than predicted."

    def learn(self, shape: str, predicted: int, measured: int) -> str:
        """Notes a real run. The sentence to say about it, empty where it taught nothing new."""
        if measured <= 0 or predicted <= 0:
            return ""
        run = Correction(predicted, measured, measured, 1)
        with self._lock:
            known = self._seen.get(shape)
            if known is not None and known.predicted == predicted:
                run = replace(known.joined(run), runs=min(RUNS, known.runs + 1))
            if run == known:
                return ""
            self._seen[shape] = run
            self._keep()
        if known is not None and known.over == run.over:
            return ""
        low, high = format_apart(predicted, measured)
        verdict = "later plans count with that" if run.over else "the prediction held"
        return f"The first run of this size was measured: {low} predicted, {high} measured; {verdict}."

    def _keep(self) -> None:
        """Writes all, joined with what another process has written meanwhile."""
        for shape, theirs in _parsed(shelf.take(self._place) or {}).items():
            mine = self._seen.get(shape)
            self._seen[shape] = theirs if mine is None else theirs.joined(mine)
        while len(self._seen) > _KEPT:
            del self._seen[next(iter(self._seen))]
        shelf.put(self._place, {shape: asdict(one) for shape, one in self._seen.items()})


def _parsed(values: Mapping[str, Any]) -> dict[str, Correction]:
    """What can be understood of a file; the rest is as if it had never been written."""
    found: dict[str, Correction] = {}
    for shape, entry in values.items():
        figures = [entry.get(name) for name in Correction.__slots__] if isinstance(entry, dict) else []
        if figures and all(type(figure) is int and figure > 0 for figure in figures):
            run = Correction(*figures)  # type: ignore[arg-type]
            found |= {shape: run} if run.least <= run.most else {}
    return found
