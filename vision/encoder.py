"""The tower in the window: need, free, plan, evict, run, copy out, and restore behind what comes next.

Where the encoder does not fit, it goes down a ladder and says so at each step: evict more, one picture at a time, on
the CPU, a typed error. The process and the next request live on. Knows no text and no language model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mmswap.card import Card, HostCard, Reading
from mmswap.config import SwapConfig
from mmswap.errors import DoesNotFit
from mmswap.swap.dry_run import DryRun, measure
from mmswap.swap.experience import Experience
from mmswap.swap.peak import Peak
from mmswap.swap.plan import Plan, plan
from mmswap.swap.pool import SwapPool
from mmswap.swap.report import WindowReport
from mmswap.swap.window import Window
from mmswap.units import MIB
from mmswap.vision.beside import Ahead, Clock, Others, apart
from mmswap.vision.cache import FeatureCache
from mmswap.vision.elsewhere import tower_at
from mmswap.vision.forecast import Forecast
from mmswap.vision.job import Encoded, Job
from mmswap.vision.merge import CannotMerge, merge
from mmswap.vision.tower import Call, Tower

Say = Callable[[str], None]
Singles = Callable[[], Sequence[Mapping[str, torch.Tensor]]]

__all__ = ["Encoded", "Encoder", "Job", "no_window"]

CACHE_BYTES = 256 * MIB
HOST = HostCard()
NOBODY = Others()
log = logging.getLogger(__name__)
ADVICE = "use a smaller --image-max-pixels, or --no-mmproj-offload"


class Encoder:
    """Encodes the pictures of a prompt: one window, however many pictures it holds.

    Args:
        tower: of the live model. pool: None where nothing may be evicted.
        experience: what earlier runs on this card taught; None neither asks nor notes anything.
    """

    def __init__(
        self,
        tower: Tower,
        dry_run: DryRun,
        card: Card,
        pool: SwapPool | None,
        swap: SwapConfig,
        experience: Experience | None = None,
    ) -> None:
        self.tower = tower
        self.card = card
        self.pool = pool
        self.swap = swap
        self.cache = FeatureCache(CACHE_BYTES)
        self._ahead = Ahead()
        self.forecast = Forecast(dry_run, card, experience)

    def explain(self, inputs: Mapping[str, torch.Tensor], say: Say) -> None:
        """What `encode` would do now, without doing it."""
        job = self.begin(inputs, say)
        if self.swap.tower_on_cpu or not self.card.can_swap:
            say(self._bypassed())
            return
        say(f"Free: {self._free().reason}.")
        say(self._decide(lambda lent: job.need(lent, job.peak.output), self.swap.layers).reason)

    def begin(self, inputs: Mapping[str, torch.Tensor], say: Say) -> Job:
        """What is known of a prompt's pictures before any is encoded; nothing is run."""
        return self.forecast.job(self.tower.call_for(inputs), say)

    def encode(self, job: Job, singles: Singles, say: Say, others: Others = NOBODY) -> Encoded:
        """The features of all pictures of a prompt.

        Args:
            job: what `begin` gave.
            singles: gives what the processor makes of each picture alone; asked only if all at once do not fit.
            say: told every decision with its reason.
            others: who else wants something meanwhile.
        """
        key = job.key
        known = self.cache.get(key)
        if known is not None and (shared := self._ahead.take(key)) is not None:
            say(shared.report().reason)
            return replace(shared, features=self._on_card(known))
        if known is not None:
            say("These pictures were encoded before: their features come from the cache, and no window is needed.")
            return Encoded(self._on_card(known), 0, 0.0, lambda: no_window("The features came from the cache."))
        say(f"Free: {self._free().reason}.")
        encoded = self._encode(job, singles, say, others)
        self.cache.put(key, encoded.features)
        return encoded

    def settle(self) -> None:
        """Returns once everything that was evicted is back."""
        if self.pool is not None:
            self.pool.settle()

    def _encode(self, job: Job, singles: Singles, say: Say, others: Others) -> Encoded:
        """Down the ladder until it fits."""
        if self.swap.tower_on_cpu or not self.card.can_swap:
            return self._on_cpu(job, self._bypassed(), say, others)
        if self.pool is None:
            return self._unswapped(job, say, others)
        while True:
            try:
                return self._in_window([job], job.peak, say, others)
            except DoesNotFit as error:
                if not others.shortage():
                    say(f"All at once does not fit: {error}")
                    break
        try:
            if len(alone := singles()) > 1:
                return self._in_window([self.begin(one, say) for one in alone], job.peak, say, others)
        except (DoesNotFit, CannotMerge) as error:
            say(f"One picture at a time does not help: {error}")
        why = "The encoder does not fit with every unit evicted, so it runs on the CPU."
        return self._on_cpu(job, why, say, others)

    def _in_window(self, jobs: Sequence[Job], whole: Peak, say: Say, others: Others) -> Encoded:
        """All jobs in one window; an allocation that fails evicts one more unit and tries again."""
        assert self.pool is not None
        kept = sum(job.peak.output for job in jobs)
        guests: list[Job] = []

        def need(lent: int) -> int:
            own = max(job.need(lent, kept) for job in jobs)
            return max([own, *(_need_beside(job, kept, lent) for job in guests)])

        layers = self.swap.layers
        if self._decide(need, layers).evict:
            guests = self._guests(jobs, kept, others, say)
        while True:
            _require(self._decide(need, layers))
            window = self.pool.window(need, layers=layers, margin=self.forecast.margin(self.swap), overlap=True)
            try:
                return self._run(jobs, whole, window, say, others, guests)
            except torch.OutOfMemoryError:
                decided = window.plan  # what it evicted, which may be more than was thought
                layers = len(decided.evict) + 1
                if layers > len(self.pool.rungs):
                    raise DoesNotFit("The vision encoder", decided.need, decided.free + decided.lent, ADVICE) from None
                say(f"The encoder ran out of memory: trying again with {layers} units evicted.")

    def _guests(self, jobs: Sequence[Job], kept: int, others: Others, say: Say) -> list[Job]:
        """Pictures of other prompts that are encoded in the same window: weights go out and come back once."""
        known = {job.key for job in jobs}
        room, guests = self.cache.limit - kept, []
        for inputs in others.pictures():
            try:
                job = self.begin(inputs, _silent)
            except Exception as error:  # it is told when it is its turn
                log.info("pictures of another prompt are not looked at ahead: %s", error)
                continue
            decided = self._decide(partial(_need_beside, job, kept), self.swap.layers)
            room -= job.peak.output
            if job.key not in known and self.cache.get(job.key) is None and not decided.shortfall and room >= 0:
                known.add(job.key)
                guests.append(job)
        if guests:
            say(f"The pictures of {len(guests)} more prompts that wait are encoded in the same window.")
        return guests

    def _run(
        self,
        jobs: Sequence[Job],
        whole: Peak,
        window: Window,
        say: Say,
        others: Others,
        guests: Sequence[Job],
    ) -> Encoded:
        pieces, encode_ms = [], 0.0
        with window:
            say(window.plan.reason)
            _require(window.plan)  # the budget may have fallen since it was last asked
            spare = -1 if window.plan.evict else window.plan.free - window.plan.need
            for job in jobs:
                features, taken = self._timed(job.call, others, spare)
                pieces.append(window.keep(features))
                encode_ms += taken
                del features
            ran = [*jobs, *(job for job in guests if self._encode_ahead(job, others))]
        features = pieces[0] if len(pieces) == 1 else merge(whole.result, pieces)
        self.forecast.learn(max(ran, key=self.forecast.expected), window.report.peak_measured, say)
        peak = max(self.forecast.expected(job) + job.extra for job in ran)
        return Encoded(features, peak, encode_ms, lambda: window.report)

    def _encode_ahead(self, job: Job, others: Others) -> bool:
        """For a prompt that waits: whether it will find the features in the cache; else it encodes by itself."""
        assert self.pool is not None
        try:
            features, taken = self._timed(job.call, others, -1)
            with apart(self.pool.arena):
                self.cache.put(job.key, features)
        except (RuntimeError, ValueError, TypeError) as error:
            log.info("pictures of another prompt could not be encoded in the same window: %s", error)
            return False
        report = no_window("The pictures were encoded in the window of another prompt, which waited beside this one.")
        self._ahead.put(job.key, Encoded(None, self.forecast.expected(job) + job.extra, taken, lambda: report))
        return True

    def _on_cpu(self, job: Job, why: str, say: Say, others: Others) -> Encoded:
        """The tower runs on the host; on a card it goes there for this prompt, and comes back."""
        say(why)
        kept: list[Any] = []
        with tower_at(self.tower, torch.device("cpu")):
            call = job.call.mapped(lambda tensor: tensor.to("cpu"))
            clock = Clock(others, None)
            peak = measure(lambda: kept.append(self.tower.run(call, clock.look)), HOST)
            encode_ms = clock.milliseconds()
        if not self.card.can_swap:  # else this was not the card, and says nothing about it
            self.forecast.learn(job, peak.live, say)
        report = replace(no_window(why), peak_measured=peak.live)
        return Encoded(self._on_card(kept[0]), job.peak.live, encode_ms, lambda: report)

    def _unswapped(self, job: Job, say: Say, others: Others) -> Encoded:
        """Swapping is off: the tower runs as if the feature did not exist, and what it spills is only counted."""
        reading = self._free()
        need = job.need(0, job.peak.output)
        decided = plan(need, reading.bytes, (), layers=0, margin=0.0)
        say(decided.reason)
        kept: list[Any] = []
        call = job.call.mapped(lambda tensor: tensor.to(self.card.device))
        clock = Clock(others, reading.bytes - need)
        peak = measure(lambda: kept.append(self.tower.run(call, clock.look)), self.card)
        encode_ms = clock.milliseconds()
        measured = peak.live + self.forecast.uploaded(job)
        self.forecast.learn(job, measured, say)
        spilled = max(0, peak.total + job.inputs - reading.bytes) if peak.events else 0
        report = WindowReport(
            opened=False,
            reason=decided.reason,
            need=decided.need,
            free=decided.free,
            deficit=decided.deficit,
            spilled_bytes=spilled,
            peak_measured=measured,
        )
        return Encoded(kept[0], self.forecast.expected(job) + job.extra, encode_ms, lambda: report)

    def _decide(self, need: Callable[[int], int], layers: int) -> Plan:
        rungs = self.pool.rungs if self.pool is not None else ()
        extra = self.pool.caution.units if self.pool is not None else 0
        reading, rate = self._free(), self.card.link_rate()
        free, debt, margin = reading.bytes, reading.over, self.forecast.margin(self.swap)
        return plan(need, free, rungs, layers=layers, margin=margin, link_rate=rate, debt=debt, extra=extra)

    def _free(self) -> Reading:
        return self.pool.free() if self.pool is not None else self.card.free()

    def _bypassed(self) -> str:
        if self.swap.tower_on_cpu:
            return "Swapping is bypassed: the vision tower runs on the CPU (--no-mmproj-offload)."
        return f"Nothing is evicted: {self.card.name} has no memory of its own to make room in."

    def _timed(self, call: Call, others: Others, spare: int) -> tuple[Any, float]:
        device = self.card.device
        clock = Clock(others, spare, self.pool.arena if self.pool is not None else None)
        features = self.tower.run(call.mapped(lambda tensor: tensor.to(device)), clock.look)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return features, clock.milliseconds()

    def _on_card(self, features: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.card.device), features)


def _need_beside(job: Job, kept: int, lent: int) -> int:
    """Bytes outside of `lent` ones for another prompt's pictures beside `kept` bytes of features."""
    return job.need(lent, kept + job.peak.output)


def _silent(_: str) -> None:
    """What is found out of another prompt's pictures is said when it is their turn."""


def _require(decided: Plan) -> None:
    """Raises `DoesNotFit` where a plan does not cover what is needed."""
    if decided.shortfall:
        raise DoesNotFit("The vision encoder", decided.need, max(0, decided.need - decided.shortfall), ADVICE)


def no_window(why: str) -> WindowReport:
    """The report where no window was thought of."""
    return WindowReport(opened=False, reason=why, need=0, free=0, deficit=0)
