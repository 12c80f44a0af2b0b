"""Everything that mmswap asks of `torch.cuda`, as one small protocol, so that the order of the calls can be tested.

`TorchBackend` serves NVIDIA and ROCm alike: torch names both `cuda`. Knows no units and no plans.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

_cuda: Any = torch.cuda  # for what torch leaves without types


@dataclass(frozen=True, slots=True)
class Properties:
    """Name, bytes, and whether the card shares the processor's memory."""

    name: str
    total: int
    integrated: bool


class Backend(Protocol):
    """What a card can be asked to do. Streams, events and pools are opaque to the callers."""

    def count(self) -> int: ...
    def properties(self, index: int) -> Properties: ...
    def device(self, index: int) -> torch.device: ...
    def driver_memory(self, index: int) -> tuple[int, int]: ...
    def reserved(self, index: int) -> int: ...
    def allocated(self, index: int) -> int: ...
    def peak_allocated(self, index: int) -> int: ...
    def reset_peak(self, index: int) -> None: ...
    def synchronize(self, index: int) -> None: ...
    def probe(self, index: int) -> None: ...
    def warm(self, index: int) -> None: ...
    def clear_workspaces(self) -> None: ...
    def empty_cache(self) -> None: ...
    def shares_pinned(self) -> bool: ...

    def make_pool(self, index: int) -> Any: ...
    def use_pool(self, pool: Any, index: int) -> AbstractContextManager[None]: ...
    def idle_in(self, pool: Any) -> int: ...
    def empty(self, nbytes: int, index: int) -> Tensor: ...
    def resize(self, tensor: Tensor, nbytes: int) -> None: ...
    def address(self, tensor: Tensor) -> int: ...

    def side_stream(self, index: int) -> Any: ...
    def current_stream(self, index: int) -> Any: ...
    def on_stream(self, stream: Any) -> AbstractContextManager[None]: ...
    def record(self, stream: Any) -> Any: ...
    def wait(self, stream: Any, event: Any) -> None: ...
    def synchronize_event(self, event: Any) -> None: ...
    def elapsed(self, begin: Any, end: Any) -> float: ...

    def pin(self, tensor: Tensor) -> None: ...
    def unpin(self, tensor: Tensor) -> None: ...
    def pinned(self, nbytes: int) -> Tensor: ...


class TorchBackend:
    """`torch.cuda`, CUDA and HIP. torch >= 2.6 for `torch.cuda.MemPool`."""

    def __init__(self) -> None:
        self._warm: set[int] = set()

    def count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def properties(self, index: int) -> Properties:
        found = torch.cuda.get_device_properties(index)
        return Properties(found.name, int(found.total_memory), bool(getattr(found, "is_integrated", False)))

    def device(self, index: int) -> torch.device:
        return torch.device("cuda", index)

    def driver_memory(self, index: int) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(index)
        return int(free), int(total)

    def reserved(self, index: int) -> int:
        return int(torch.cuda.memory_reserved(index))

    def allocated(self, index: int) -> int:
        return int(torch.cuda.memory_allocated(index))

    def peak_allocated(self, index: int) -> int:
        return int(torch.cuda.max_memory_allocated(index))

    def reset_peak(self, index: int) -> None:
        torch.cuda.reset_peak_memory_stats(index)

    def synchronize(self, index: int) -> None:
        torch.cuda.synchronize(index)

    def probe(self, index: int) -> None:
        """One tiny kernel, waited for: where an earlier call's late error comes up."""
        torch.zeros(1, device=self.device(index))
        torch.cuda.synchronize(index)

    def warm(self, index: int) -> None:
        """Makes BLAS ask for its workspace now, from the ordinary pool; it then keeps it."""
        if index not in self._warm:
            with torch.no_grad():
                one = torch.ones(16, 16, device=self.device(index))
                torch.nn.functional.linear(one @ one, one, one[0])
            self._warm.add(index)

    def clear_workspaces(self) -> None:
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def shares_pinned(self) -> bool:
        return sys.platform == "win32"  # WDDM charges pinned host memory to the card

    def make_pool(self, index: int) -> Any:
        with torch.cuda.device(index):
            try:
                return torch.cuda.MemPool(use_on_oom=True)  # others may have its idle bytes before they fail
            except TypeError:  # torch before 2.8
                return torch.cuda.MemPool()

    def use_pool(self, pool: Any, index: int) -> AbstractContextManager[None]:
        return torch.cuda.use_mem_pool(pool, index)

    def idle_in(self, pool: Any) -> int:
        wanted = tuple(pool.id)
        segments = [s for s in _cuda.memory_snapshot() if tuple(s.get("segment_pool_id", ())) == wanted]
        return sum(int(segment["total_size"]) - int(segment["allocated_size"]) for segment in segments)

    def empty(self, nbytes: int, index: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device(index))

    def resize(self, tensor: Tensor, nbytes: int) -> None:
        tensor.untyped_storage().resize_(nbytes)

    def address(self, tensor: Tensor) -> int:
        return int(tensor.untyped_storage().data_ptr())

    def side_stream(self, index: int) -> Any:
        return _cuda.Stream(index)

    def current_stream(self, index: int) -> Any:
        return torch.cuda.current_stream(index)

    def on_stream(self, stream: Any) -> AbstractContextManager[None]:
        return torch.cuda.stream(stream)

    def record(self, stream: Any) -> Any:
        event = _cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def synchronize_event(self, event: Any) -> None:
        event.synchronize()

    def elapsed(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end))

    def pin(self, tensor: Tensor) -> None:
        """Page-locks existing host memory: exactly its bytes, where torch would round up to a power of two."""
        status = _cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0)
        if int(status) != 0:
            raise RuntimeError(f"cudaHostRegister of {tensor.numel()} bytes failed with status {int(status)}")

    def unpin(self, tensor: Tensor) -> None:
        _cuda.cudart().cudaHostUnregister(tensor.data_ptr())

    def pinned(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
