"""What one kernel allocates, read from a real call of it on tensors of zeros. Knows operators, not models.

    scratch = CpuMeter().scratch(torch.ops.aten.mm.default, (fake_x, fake_w), {})     # bytes, or None

Fake arguments are made real for the moment of the call; integer and bool arguments are taken as they are.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mmswap.swap.fake import is_fake
from mmswap.swap.tracker import tensors_of


class CpuMeter:
    """Reads torch's CPU allocator through the profiler's memory events (the plain one, which starts in 0.5 ms)."""

    device = "cpu"

    def identity(self) -> str:
        """For what its figures hold: kernels differ by instruction set and number of threads."""
        capability = torch.backends.cpu.get_cpu_capability()
        return f"{platform.machine()} {capability}, {torch.get_num_threads()} threads"

    def scratch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Most bytes alive during the call beyond its results; None where it cannot be read."""
        try:
            from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
            from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
        except ImportError:
            return None
        if _profiler_enabled():
            return None
        try:
            args, kwargs = real_arguments(func, args, kwargs, self.device)
            _enable_profiler_legacy(
                ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
            )
            try:
                result = func(*args, **kwargs)
            finally:
                threads = _disable_profiler_legacy()
        except Exception:
            return None
        deltas = (
            event.cpu_memory_usage() for thread in threads for event in thread if str(event.kind()) == "memory_alloc"
        )
        return max(0, _highest(deltas) - own_bytes((args, kwargs), result))


class CudaMeter:
    """Reads torch's CUDA/ROCm allocator around the call. Takes the operands' bytes on the card for that moment.

    The peak statistics of the device are reset: not to be used while someone else reads them.
    """

    def __init__(self, device: str = "cuda") -> None:
        self.device = device

    def identity(self) -> str:
        """For what its figures hold: the card's model."""
        return str(torch.cuda.get_device_name(self.device))

    def scratch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """Most bytes alive during the call beyond its results; None where the call fails on this device."""
        try:
            args, kwargs = real_arguments(func, args, kwargs, self.device)
            func(*args, **kwargs)  # the first call also sets up handles and workspaces that stay
            torch.cuda.synchronize(self.device)
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            result = func(*args, **kwargs)
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
        except Exception:
            return None
        return max(0, peak - before - own_bytes((args, kwargs), result))


def own_bytes(arguments: Any, result: Any) -> int:
    """Bytes of the storages that the call made and handed out."""
    given = {tensor.untyped_storage()._cdata for tensor in tensors_of(arguments)}
    made = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors_of(result)}
    return sum(nbytes for storage, nbytes in made.items() if storage not in given)


def real_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with zeros, laid out alike, in place of fake tensors; nothing of the caller's is written to."""
    writes = func._schema.is_mutable

    def make(tensor: Tensor) -> Tensor:
        if not (is_fake(tensor) or tensor.device.type == "meta"):
            return tensor.detach().to(device, copy=writes)
        extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
        flat = torch.zeros(extent, dtype=tensor.dtype, device=device)
        return flat.as_strided(tensor.shape, tensor.stride())

    made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(Tensor, make, (tuple(args), dict(kwargs)))
    if "device" in made[1] and made[1]["device"] is not None:
        made[1]["device"] = torch.device(device)
    return made


def _highest(deltas: Any) -> int:
    now = most = 0
    for delta in deltas:
        now += delta
        most = max(most, now)
    return most
