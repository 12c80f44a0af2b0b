"""What is known of a tower call before it runs, and what is learnt from it after. Knows no window and no pool.

forecast = Forecast(dry_run, card, experience);  job = forecast.job(call, say)
forecast.learn(job, measured, say)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mmswap.card import Card
from mmswap.config import SwapConfig
from mmswap.swap.dry_run import DryRun
from mmswap.swap.experience import Experience
from mmswap.units import format_bytes
from mmswap.vision.job import Job
from mmswap.vision.tower import Call, run_tower

Say = Callable[[str], None]


class Forecast:
    """See the module.

    Attributes:
        experience: what earlier runs on this card taught; None neither asks nor notes anything.
    """

    def __init__(self, dry_run: DryRun, card: Card, experience: Experience | None) -> None:
        self._dry_run, self._card, self.experience = dry_run, card, experience

    def job(self, call: Call, say: Say) -> Job:
        """The call with its peak, by a dry run and by what earlier runs corrected."""
        job = Job(call, self._dry_run.tower_peak(run_tower, call))
        say(
            f"The encoder's peak is {format_bytes(job.peak.with_scratch)} ({job.peak.how}); beside it "
            f"{format_bytes(job.inputs)} of pixels and {format_bytes(job.peak.output)} of features."
        )
        if self.experience is None:
            return job
        expected = self.expected(job)
        extra, why = self.experience.extra(job.shape, expected)
        certain = job.peak.live + self.uploaded(job) - expected  # below 0: the trace saw that much alive
        if extra < certain:
            extra, why = certain, f"{why} No more than {format_bytes(-certain)} of that counts: the rest was traced."
        if why:
            say(why)
        return replace(job, extra=extra)

    def expected(self, job: Job) -> int:
        """What a measurement on this card would show: its allocator sees scratch and inputs, a tracker sees neither."""
        peak = job.peak.with_scratch if self._card.device.type == "cuda" else job.peak.live
        return peak + self.uploaded(job)

    def uploaded(self, job: Job) -> int:
        """Bytes of inputs that are copied to the card for a run; on the host they are where they were."""
        return job.inputs if self._card.device.type == "cuda" else 0

    def learn(self, job: Job, measured: int, say: Say) -> None:
        """A run took so much."""
        if self.experience is not None and job.peak.events:
            taught = self.experience.learn(job.shape, self.expected(job), measured)
            if taught:
                say(taught)

    def margin(self, swap: SwapConfig) -> float:
        """A margin that was asked for stands; the usual one gives way to what a profile knows."""
        usual = swap.margin == SwapConfig().margin
        return self.experience.margin(swap.margin) if self.experience is not None and usual else swap.margin
