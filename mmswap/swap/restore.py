"""Brings evicted units back, in order of use, now or behind the computation. Knows units and bytes, not windows.

    restoration = Restoration(jobs, copier);  restoration.start(behind=True);  ...;  restoration.settle()

Behind, each unit's modules carry a forward pre-hook that waits for that unit alone and goes once it has done so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mmswap.swap.copier import Copier
from mmswap.swap.unit import Unit

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One unit on its way back. `issued` is set once its copy is over, enqueued, or has failed for good."""

    unit: Unit
    slab: Tensor
    mirror: Tensor
    issued: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None
    hooks: list[RemovableHandle] = field(default_factory=list)


class Restoration:
    """One restore of some units.

    Attributes:
        errors: what went wrong, first things first; a unit whose second attempt worked is back all the same.
        restored_bytes: bytes that are back so far.
    """

    def __init__(self, jobs: Sequence[Job], copier: Copier) -> None:
        self.errors: list[BaseException] = []
        self.restored_bytes = 0
        self._jobs = tuple(jobs)
        self._copier = copier
        self._thread: threading.Thread | None = None
        self._behind = False
        self._waited = 0.0
        self._milliseconds = 0.0

    @property
    def threaded(self) -> bool:
        """Whether a thread of its own has the work: errors then show up at `settle`."""
        return self._thread is not None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, *, behind: bool) -> None:
        """Copies everything; with `behind`, returns at once and lets the units' hooks do the waiting."""
        self._behind = behind
        if behind:
            self._install()
        try:
            self._copier.begin()  # here, for it is this thread's computation that the copies must wait for
        except BaseException as error:
            self.errors.append(error)
        if behind and self._copier.busy:
            try:
                self._thread = threading.Thread(target=self._run, name="mmswap-restore")
                self._thread.start()
                return
            except RuntimeError as error:  # no more threads: then it is done here
                log.warning("restoring cannot go on behind the computation: %s", error)
                self._thread = None
        self._run()

    def settle(self) -> None:
        """Returns once every unit is back and every hook is gone, whatever interrupts it; `errors` tells the rest."""
        began = time.perf_counter()
        self._await_thread()
        self._run()  # whatever no thread has done
        self._waited += (time.perf_counter() - began) * 1e3
        try:
            self._arrive()
        except BaseException as error:
            self.errors.append(error)
        for job in self._jobs:
            self._unhook(job)

    def drain(self) -> list[BaseException]:
        """The errors so far, each given out once."""
        errors, self.errors = self.errors, []
        return errors

    def timing(self) -> tuple[float, float]:
        """Milliseconds of the restore, and the part of them in which nothing waited. Final once settled."""
        hidden = max(0.0, self._milliseconds - self._waited) if self._behind else 0.0
        return self._milliseconds, hidden

    def _arrive(self) -> None:
        """The calling thread sees every unit from now on; the times are final."""
        for job in self._jobs:
            self._copier.wait(job.unit)
        copied = self._copier.finish()
        if copied is not None:
            self._milliseconds = copied
            self._waited += self._copier.waited()

    def _run(self) -> None:
        began = time.perf_counter()
        for job in self._jobs:
            if not job.issued.is_set():
                self._restore(job)
                self._milliseconds = (time.perf_counter() - began) * 1e3

    def _restore(self, job: Job) -> None:
        """One unit, twice if need be; nothing that happens here keeps the next one from coming back."""
        try:
            for attempt in (self._copier.copy, self._copier.copy_plainly):
                try:
                    attempt(job.unit, job.slab, job.mirror)
                    job.unit.missing = False
                    self.restored_bytes += job.unit.nbytes
                    return
                except BaseException as error:
                    self.errors.append(error)
                    job.failure = error
        finally:
            job.issued.set()

    def _install(self) -> None:
        for job in self._jobs:

            def hook(_module: nn.Module, _args: Any, job: Job = job) -> None:
                self._wait(job)

            for module in job.unit.owners():
                job.hooks.append(module.register_forward_pre_hook(hook, prepend=True))

    def _wait(self, job: Job) -> None:
        """Runs in front of a unit's forward: waits for that unit and for nothing else."""
        if not job.issued.is_set():
            began = time.perf_counter()
            if self.running:
                job.issued.wait()
            else:
                self._run()
            self._waited += (time.perf_counter() - began) * 1e3
        if job.unit.missing:
            raise RuntimeError(f"{job.unit.name} could not be restored") from job.failure
        self._copier.wait(job.unit)
        self._unhook(job)

    def _unhook(self, job: Job) -> None:
        while job.hooks:
            job.hooks[-1].remove()
            job.hooks.pop()

    def _await_thread(self) -> None:
        while self._thread is not None and self._thread.is_alive():
            try:
                self._thread.join()
            except BaseException as error:  # it is reported once everything is back
                self.errors.append(error)
