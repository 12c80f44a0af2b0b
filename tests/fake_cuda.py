"""A `torch.cuda` of nothing: host tensors, the allocator's own policy for their addresses, and a log of every call.

Addresses come from `mmswap.swap.replay.Allocator` under torch's policy, one allocator for each memory pool, so slabs
split, merge and miss their place as they would on a card. Copies on a side stream are carried out late, when an event
is waited for: who reads too early sees the old bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from mmswap.card.backend import Kind, Properties
from mmswap.swap.replay import TORCH, Allocator, Block

GIB = 1 << 30


class FakeCuda:
    """Implements `mmswap.card.backend.Backend`.

    `hip` makes it ROCm's. `broken` maps a device to the error that every kernel on it ends with. `room` is how much the
    driver hands out before an allocation fails.
    """

    def __init__(self, *, total: int = 16 * GIB, windows: bool = False, hip: bool = False) -> None:
        self.log: list[str] = []
        self.total = total
        self.windows = windows
        self.hip = hip
        self.broken: dict[int, Exception] = {}
        self.architectures: tuple[str, ...] = ()
        self.room: int | None = None
        self.share = 1.0
        self.driver: Callable[[], tuple[int, int]] = lambda: (self.total - self.reserved(0), self.total)
        self.pin_limit: int | None = None
        self.pinned_bytes = 0
        self.pools: list[Allocator] = [Allocator(0, TORCH)]
        self.current = 0
        self.blocks: dict[int, tuple[int, Block]] = {}
        self.devices = [Properties("fake card", total, False)]
        self.late: list[tuple[Tensor, Tensor]] = []
        self.streams = 0
        self.stream = "main"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes `copy_(..., non_blocking=True)` late for the time of a test."""
        real = Tensor.copy_

        def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
            if not non_blocking:
                return real(target, source)
            self.copy_later(target, source)
            return target

        monkeypatch.setattr(Tensor, "copy_", copy_)

    def kind(self) -> Kind:
        return "hip" if self.hip else "cuda"

    def platform(self) -> str:
        return "win32" if self.windows else "linux"

    def compiled_for(self) -> tuple[str, ...]:
        return self.architectures

    def count(self) -> int:
        return len(self.devices)

    def properties(self, index: int) -> Properties:
        return self.devices[index]

    def device(self, index: int) -> torch.device:
        return torch.device("cpu")

    def driver_memory(self, index: int) -> tuple[int, int]:
        return self.driver()

    def allowed_share(self, index: int) -> float:
        return self.share

    def reserved(self, index: int) -> int:
        return sum(pool.peak_growth for pool in self.pools)

    def allocated(self, index: int) -> int:
        return sum(block.size for _, block in self.blocks.values())

    def peak_allocated(self, index: int) -> int:
        return max(self.peak, self.allocated(index))

    def reset_peak(self, index: int) -> None:
        self.peak = self.allocated(index)

    def synchronize(self, index: int) -> None:
        self.log.append("synchronize")
        self._flush()

    def probe(self, index: int) -> None:
        self.log.append("probe")

    def try_kernel(self, index: int) -> None:
        if index in self.broken:
            raise self.broken[index]

    def warm(self, index: int) -> None:
        self.log.append("warm")

    def clear_workspaces(self) -> None:
        self.log.append("clear workspaces")

    def empty_cache(self) -> None:
        self.log.append("empty cache")

    def shares_pinned(self) -> bool:
        return self.windows

    def make_pool(self, index: int) -> int:
        self.pools.append(Allocator(0, TORCH))
        return len(self.pools) - 1

    @contextmanager
    def use_pool(self, pool: int, index: int) -> Iterator[None]:
        self.log.append("pool on")
        before, self.current = self.current, pool
        try:
            yield
        finally:
            self.current = before
            self.log.append("pool off")

    def idle_in(self, pool: int) -> int:
        used = sum(block.size for owner, block in self.blocks.values() if owner == pool)
        return self.pools[pool].peak_growth - used

    def empty(self, nbytes: int, index: int) -> Tensor:
        if self.room is not None and self.allocated(index) + nbytes > self.room:
            raise torch.OutOfMemoryError(f"Tried to allocate {nbytes} bytes")
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        self._take(tensor, nbytes)
        return tensor

    def resize(self, tensor: Tensor, nbytes: int) -> None:
        self.log.append("give up" if nbytes == 0 else "take")
        self._drop(tensor.untyped_storage()._cdata)
        tensor.untyped_storage().resize_(nbytes)
        if nbytes:
            self._take(tensor, nbytes)

    def address(self, tensor: Tensor) -> int:
        known = self.blocks.get(tensor.untyped_storage()._cdata)
        return known[0] << 44 | known[1].address if known else 0

    def side_stream(self, index: int) -> str:
        self.streams += 1
        return f"side {self.streams}"

    def current_stream(self, index: int) -> str:
        return self.stream

    @contextmanager
    def on_stream(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def record(self, stream: str) -> str:
        self.log.append(f"record {stream}")
        return f"{stream} #{len(self.log)}"

    def wait(self, stream: str, event: str) -> None:
        self.log.append(f"{stream} waits for {event.partition(' #')[0]}")
        if stream == "main":
            self._flush()

    def synchronize_event(self, event: str) -> None:
        self._flush()

    def elapsed(self, begin: str, end: str) -> float:
        return float(end.partition("#")[2]) - float(begin.partition("#")[2])

    def pin(self, tensor: Tensor) -> None:
        if self.pin_limit is not None and self.pinned_bytes + tensor.numel() > self.pin_limit:
            raise RuntimeError("cudaHostRegister failed with status 2")
        self.pinned_bytes += tensor.numel()

    def unpin(self, tensor: Tensor) -> None:
        self.pinned_bytes -= tensor.numel()

    def pinned(self, nbytes: int) -> Tensor:
        self.log.append("pinned buffer")
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy_later(self, target: Tensor, source: Tensor) -> None:
        """What `copy_(non_blocking=True)` on a side stream means here."""
        self.log.append(f"copy on {self.stream}")
        self.late.append((target, source))

    def _flush(self) -> None:
        while self.late:
            target, source = self.late.pop(0)
            target.copy_(source)

    peak = 0

    def _take(self, tensor: Tensor, nbytes: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self.blocks[key] = (self.current, self.pools[self.current].malloc(nbytes))
        weakref.finalize(storage, self._drop, key)
        self.peak = max(self.peak, self.allocated(0))

    def _drop(self, key: int) -> None:
        known = self.blocks.pop(key, None)
        if known is not None:
            self.pools[known[0]].free(known[1])
