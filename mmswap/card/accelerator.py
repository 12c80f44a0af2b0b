"""A card behind `torch.cuda`: NVIDIA and ROCm alike. Knows what is free on it, and not who wants it.

What each source says is put together here, at every reading; the arithmetic is `budget`'s.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from mmswap.card import budget, nvml, sysfs
from mmswap.card.backend import Backend
from mmswap.card.base import Card
from mmswap.card.budget import OVERRIDE, Reading, Source
from mmswap.card.choosing import choose
from mmswap.card.outside import Outside, is_integrated, look_outside
from mmswap.card.spill import Spill
from mmswap.errors import told
from mmswap.units import format_bytes

log = logging.getLogger(__name__)


class PrivatePool(Protocol):
    """Holds bytes of the card that nobody else can get."""

    def scratch(self) -> int:
        """How many of them lie idle."""


class AcceleratorCard(Card):
    """`--card cuda[:i]`.

    Args:
        backend: `torch.cuda` in life, a stand-in under test.
        index: which device; None takes the largest one that is no part of the processor.
        vram_limit: bytes that this process may use; on a card that lives in the host's memory it is the size as well.
        outside: who else is asked; None looks for them.

    Attributes:
        integrated: whether the card is a part of the processor.
        outside: who else is asked.
    """

    def __init__(
        self, backend: Backend, index: int | None, vram_limit: int | None = None, *, outside: Outside | None = None
    ) -> None:
        self.backend = backend
        self.index, self.choice = (index, "it was asked for") if index is not None else choose(backend)
        found = backend.properties(self.index)
        self.spec = f"cuda:{self.index}"
        self.name = found.name
        self.device = backend.device(self.index)
        self.can_swap = True
        self.integrated = is_integrated(found)
        self.kind = backend.kind()
        self.platform = backend.platform()
        if outside is None:
            outside = look_outside(found, kind=self.kind, platform=self.platform, index=self.index)
        self.outside = outside
        self._limit = vram_limit
        self._told = max(0, found.total)
        self._total = self._size()
        self._missing = 0  # bytes that a check in progress could not place
        self._pools: weakref.WeakSet[PrivatePool] = weakref.WeakSet()
        self._warned: set[str] = set()  # names of sources that lied
        self._said: set[str] = set()  # what torch could not tell
        log.info("using %s, %s: %s", self.spec, self.name, self.choice)

    def total(self) -> int:
        return self._total

    def free(self) -> Reading:
        """The least of what the driver, the system and the user allow, and what torch has cached, less what sits unused
        in private pools. Never raises."""
        reserved = self._count("reserved", self.backend.reserved)
        bounds = self._bounds(reserved)
        idle = sum(pool.scratch() for pool in tuple(self._pools))
        # Another thread may give cached bytes back between two counts: the lesser cannot be the driver's as well.
        held = min(reserved, self._count("reserved", self.backend.reserved))
        cached = max(0, held - self._count("allocated", self.backend.allocated) - idle)
        reading = budget.true_free(bounds, cached=cached)
        doubts = {source.name for source in bounds if source.doubtful}
        if not doubts <= self._warned:
            self._warned |= doubts
            log.warning("%s: %s (%s SIZE says what it may use)", self.spec, reading.reason, OVERRIDE)
        return budget.adjusted(reading, -self._missing, f"and {format_bytes(self._missing)} could not be placed")

    @contextmanager
    def placed(self, label: str, nbytes: int) -> Iterator[bool]:
        held = None
        try:
            held = self.backend.empty(nbytes, self.index)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
                raise
            self._missing += nbytes
        fits = held is not None
        try:
            yield fits
        finally:
            if not fits:
                self._missing -= nbytes
            del held
            self.backend.empty_cache()  # back to the driver, where a budget counts it

    def spilled(self) -> Spill:
        """What lies in host memory for this process, pinned bytes included: a baseline is the watcher's business."""
        if self.integrated and self._in_host_memory(max(self._total, self._told)):
            return Spill(0, "the card lives in the host's memory: nothing can be moved there", "")
        found, how = self.outside.host_bytes()
        return Spill(0, found, "") if isinstance(found, str) else Spill(found, "", how)

    def know(self, pool: PrivatePool) -> None:
        """Registers a private memory pool for as long as it lives: its idle bytes are not free to others."""
        self._pools.add(pool)

    def _size(self) -> int:
        """Bytes of the card. Torch may tell an integrated card's aperture for its size: then the user's word counts, or
        amdgpu's of a carve-out that is larger."""
        if self.integrated:
            return self._limit or max(self._told, self._carved())
        return self._told or _size_in(self._ask_driver()) or self._limit or 0

    def _carved(self) -> int:
        """What amdgpu says of the card's own memory, 0 if nothing."""
        amdgpu = self.outside.amdgpu
        return amdgpu.vram_total() if amdgpu is not None and not isinstance(amdgpu, str) else 0

    def _bounds(self, reserved: int) -> list[Source]:
        """What every source says, the driver first."""
        answer = self._ask_driver()
        own_only = self.kind == "hip" and self.platform == "win32"
        total = self._total
        if self.integrated:  # a limit may be less than the card; and it may be the properties that told an aperture
            total = max(total, self._told, self._carved(), _size_in(answer))
        driver = budget.driver_says(answer, total=total, own_only=own_only)
        account = budget.own_account(total=total, reserved=reserved)
        shared = self.integrated and self._in_host_memory(total)
        if shared and self.kind == "cuda" and driver.bytes is not None:
            driver = budget.unknown(budget.DRIVER, "it takes the host's page cache for memory that is used")
        bounds = [driver, account]
        bounds += self.outside.windows(_lesser(driver, account), total)
        bounds += self._amdgpu(shared)
        found = self.outside.nvml
        if found is not None:
            bounds.append(budget.unknown(nvml.NAME, found) if isinstance(found, str) else found.vram())
        if shared:
            bounds.append(budget.host_leaves(self.outside.host_available()))
        bounds += self._caps(reserved)
        return bounds

    def _amdgpu(self, shared: bool) -> list[Source]:
        amdgpu = self.outside.amdgpu
        if amdgpu is None:
            return []
        if isinstance(amdgpu, str):
            return [budget.unknown(sysfs.NAME, amdgpu)]
        if shared:
            return [budget.unknown(sysfs.NAME, "the card's own memory is a small part of the host memory it uses")]
        return [amdgpu.vram()]

    def _caps(self, reserved: int) -> list[Source]:
        caps = []
        if self._limit is not None:
            caps.append(budget.limit_leaves(limit=self._limit, reserved=reserved))
        try:
            share = self.backend.allowed_share(self.index)
        except Exception as error:  # what torch cannot say, it does not limit
            self._say_once("share", logging.INFO, f"torch does not say its memory fraction: {told(error)}")
            share = 1.0
        if 0 <= share < 1:
            limit = int(share * (self._told or self._total))  # torch takes it of the size that it tells
            caps.append(budget.limit_leaves(limit=limit, reserved=reserved, whose="torch's memory fraction"))
        return caps

    def _ask_driver(self) -> tuple[int, int] | str:
        try:
            free, total = self.backend.driver_memory(self.index)
            return int(free), int(total)
        except Exception as error:
            return f"asking for it failed: {told(error)}"

    def _count(self, what: str, ask: Callable[[int], int]) -> int:
        """One of torch's own counts; 0 where torch does not count."""
        try:
            return max(0, int(ask(self.index)))
        except Exception as error:
            said = f"torch does not say how many bytes are {what} ({told(error)}): they are taken for none"
            self._say_once(what, logging.WARNING, said)
            return 0

    def _say_once(self, about: str, level: int, sentence: str) -> None:
        if about not in self._said:
            self._said.add(about)
            log.log(level, "%s: %s", self.spec, sentence)

    def _in_host_memory(self, total: int) -> bool:
        """Whether an integrated card's bytes are the host's own: a carve-out is not, for the host cannot see it."""
        installed = self.outside.host_installed()
        if installed and total > installed:
            return False
        carved = self._carved()
        return not carved or budget.below(carved, total)


def _size_in(answer: tuple[int, int] | str) -> int:
    """Bytes of the card in the driver's answer, 0 if it makes no sense."""
    return answer[1] if not isinstance(answer, str) and 0 <= answer[0] <= answer[1] else 0


def _lesser(driver: Source, account: Source) -> Source:
    """What Windows' budget lowers: a driver that has more left than this process leaves does not see what it holds."""
    if driver.bytes is None or (account.bytes is not None and account.bytes < driver.bytes):
        return account
    return driver
