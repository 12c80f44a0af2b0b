"""The per-op scratch table: bytes that a kernel takes for itself inside one op, which no trace of tensors can see.

A call that is small is made once for real, on this device, and what it took is kept (`meter`). A large matrix product
or convolution is measured at two smaller sizes and extrapolated; every other large call goes by formula (`kernels`).

    trace = FakeTrace(twin, scratch=ScratchTable())
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from mmswap.swap import kernels
from mmswap.swap.meter import CpuMeter, CudaMeter
from mmswap.swap.tracker import tensors_of
from mmswap.units import MIB

aten = torch.ops.aten

_ROWS_OF = {"mm": 0, "addmm": 1}  # the operand whose first dimension can be cut without changing the kernel's plan
_SMALL = MIB  # operands and results together, of an op that is cheap per byte
_WORK_16_BIT, _WORK_32_BIT = 6e9, 1e9  # multiply-adds times two that one measured call may cost


DEFAULT = CpuMeter()


class ScratchTable:
    """Callable as `LiveTracker(scratch=...)` wants it; remembers by shapes, strides and dtypes.

    Args:
        meter: how a call is measured; None never measures and goes by formula alone.
        limit: most bytes that a measured call's operands and results may take.
    """

    def __init__(self, meter: CpuMeter | CudaMeter | None = DEFAULT, limit: int = 512 * MIB) -> None:
        self._meter = meter
        self._limit = limit
        self._known: dict[Hashable, int] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        if func.namespace == "prim" or func.is_view or _draws(func):
            return 0
        key = (func, _shapes(args), _shapes(tuple(kwargs.values())), _shapes((result,)))
        if key not in self._known:
            self._known[key] = self._find(func, args, kwargs, result)
        return self._known[key]

    def _find(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        work = _work(func, args, result)
        size = sum(kernels.nbytes(tensor) for tensor in tensors_of((args, kwargs, result)))
        measured = None
        if self._meter is not None:
            if (work == 0 and size <= _SMALL) or (0 < work <= _allowed(args) and size <= self._limit):
                measured = self._meter.scratch(func, args, kwargs)
            elif work > 0:
                share = min(_allowed(args) / work, self._limit / size)
                measured = self._extrapolated(func, args, kwargs, share)
        return measured if measured is not None else kernels.bytes_of(func, args, result)

    def _extrapolated(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], share: float) -> int | None:
        name = func._schema.name.partition("::")[2]
        cut = _cutter(name, args)
        if cut is None:
            return None
        whole, make = cut
        few = int(whole * share) // 2
        if few < 1:
            return None
        assert self._meter is not None
        low, high = self._meter.scratch(func, make(few), kwargs), self._meter.scratch(func, make(2 * few), kwargs)
        if low is None or high is None:
            return None
        slope = max(0.0, (high - low) / few)
        spare = _blocks(args) if name in _ROWS_OF and high > 0 else high // 50
        return math.ceil(high + slope * (whole - 2 * few)) + spare


def _draws(func: Any) -> bool:
    """Whether a real call would disturb the random numbers of others. (Attention could, by a dropout that is off.)"""
    return func is not kernels.SDPA and torch.Tag.nondeterministic_seeded in func.tags


def _shapes(args: tuple[Any, ...]) -> Hashable:
    return tuple(_shape(arg) for arg in args)


def _shape(arg: Any) -> Hashable:
    if isinstance(arg, Tensor):
        return (arg.dtype, arg.shape, arg.stride())
    if isinstance(arg, (list, tuple)):
        return _shapes(tuple(arg))
    return (type(arg), arg) if isinstance(arg, (int, float, bool, str)) else str(arg)


def _allowed(args: tuple[Any, ...]) -> float:
    return _WORK_16_BIT if next(tensors_of(args)).element_size() == 2 else _WORK_32_BIT


def _work(func: Any, args: tuple[Any, ...], result: Any) -> float:
    """Floating-point operations of the kernels that libraries plan by themselves; 0 for every other op."""
    name = func._schema.name.partition("::")[2]
    if name == "convolution":
        return 2.0 * result.numel() * args[1][0].numel()
    if func is kernels.SDPA:
        return 4.0 * args[0].numel() * args[1].shape[2]
    if name in ("mm", "bmm"):
        return 2.0 * args[0].numel() * args[1].shape[-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * args[1].numel() * args[2].shape[-1]
    return 0.0


def _cutter(name: str, args: tuple[Any, ...]) -> tuple[int, Any] | None:
    """How many rows (matrix products, image rows) or batch entries the call has, and the call with fewer of them."""
    if name in _ROWS_OF:
        place = _ROWS_OF[name]
        return args[place].shape[0], lambda n: (*args[:place], args[place][:n], *args[place + 1 :])
    if name == "bmm":
        return args[0].shape[0], lambda n: (args[0][:n], args[1][:n])
    if name == "baddbmm":
        return args[1].shape[0], lambda n: (args[0][:n] if args[0].ndim == 3 else args[0], args[1][:n], args[2][:n])
    if name == "convolution" and args[0].shape[0] > 1:
        return args[0].shape[0], lambda n: (args[0][:n], *args[1:])
    if name == "convolution" and args[0].ndim == 4:
        step = args[3][0]
        return args[0].shape[2] // step, lambda n: (args[0][:, :, : n * step], *args[1:])
    return None


def _blocks(args: tuple[Any, ...]) -> int:
    """A block of the repacked right-hand side for each thread, which oneDNN adds from some number of rows on."""
    return args[-1].shape[0] * 400 * 2 * torch.get_num_threads()
