"""Everything that mmswap asks of `torch.cuda`, as one small protocol, so that the order of the calls can be tested.

`TorchBackend` serves NVIDIA and ROCm alike: torch names both `cuda`. Knows no units and no plans.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

_cuda: Any = torch.cuda  # for what torch leaves without types


Kind = Literal["hip", "cuda"]


@dataclass(frozen=True, slots=True)
class Properties:
    """Name, bytes, and whether the card is a part of the processor.

    `arch` is `gfx1100` or `sm_90`, empty where it is not said. `pci` (`0000:03:00.0`) and `uuid` are there where torch
    tells them.
    """

    name: str
    total: int
    integrated: bool
    arch: str = ""
    pci: str | None = None
    uuid: str | None = None


class Backend(Protocol):
    """What a card can be asked to do. Streams, events and pools are opaque to the callers."""

    def kind(self) -> Kind: ...
    def platform(self) -> str: ...
    def compiled_for(self) -> tuple[str, ...]: ...
    def count(self) -> int: ...
    def properties(self, index: int) -> Properties: ...
    def device(self, index: int) -> torch.device: ...
    def driver_memory(self, index: int) -> tuple[int, int]: ...
    def allowed_share(self, index: int) -> float: ...
    def reserved(self, index: int) -> int: ...
    def allocated(self, index: int) -> int: ...
    def peak_allocated(self, index: int) -> int: ...
    def reset_peak(self, index: int) -> None: ...
    def synchronize(self, index: int) -> None: ...
    def probe(self, index: int) -> None: ...
    def try_kernel(self, index: int) -> None: ...
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

    def kind(self) -> Kind:
        return "hip" if getattr(torch.version, "hip", None) else "cuda"

    def platform(self) -> str:
        return sys.platform

    def compiled_for(self) -> tuple[str, ...]:
        """The architectures that this torch has kernels for."""
        return tuple(torch.cuda.get_arch_list())

    def count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def properties(self, index: int) -> Properties:
        found: Any = torch.cuda.get_device_properties(index)
        return Properties(
            name=str(found.name),
            total=int(found.total_memory),
            integrated=bool(getattr(found, "is_integrated", False)),
            arch=_arch(found, self.kind()),
            pci=_pci(found),
            uuid=str(found.uuid) if getattr(found, "uuid", None) else None,
        )

    def device(self, index: int) -> torch.device:
        return torch.device("cuda", index)

    def driver_memory(self, index: int) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(index)
        return int(free), int(total)

    def allowed_share(self, index: int) -> float:
        """`set_per_process_memory_fraction`: the part of the card that torch lets this process have; 1 where unset."""
        ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # torch before 2.7 cannot say
        return float(ask(index)) if ask is not None else 1.0

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

    def try_kernel(self, index: int) -> None:
        """One sum that is read back. Raises what a card raises that is listed, and for which torch has no code."""
        one = torch.ones(2, device=self.device(index))
        if (one + one).sum().item() != 4:
            raise RuntimeError("1 + 1 is not 2 on it")

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


def _arch(found: Any, kind: Kind) -> str:
    """`gfx90a` of `gfx90a:sramecc+:xnack-`, or `sm_90` of CUDA's numbers; empty where they are missing."""
    if kind == "hip":
        return str(getattr(found, "gcnArchName", "")).partition(":")[0].strip()
    major, minor = getattr(found, "major", None), getattr(found, "minor", None)
    return f"sm_{major}{minor}" if isinstance(major, int) and isinstance(minor, int) else ""


def _pci(found: Any) -> str | None:
    """The address as Linux writes it, where this torch has it; bus 0, device 0 is the bridge itself, so no card's."""
    domain, bus, slot = (getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    if not isinstance(bus, int) or not isinstance(slot, int) or not (bus or slot):
        return None
    return f"{domain if isinstance(domain, int) else 0:04x}:{bus:02x}:{slot:02x}.0"
