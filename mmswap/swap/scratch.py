"""The per-op scratch table: bytes that a kernel takes for itself inside one op, which no trace of tensors can see.

A small call is made once for real, on this device, and what it took is kept (`meter`). A large one goes by formula
(`kernels`); where the formula only bounds what a library decides (oneDNN), the answer is a `Bound`, and the call is
measured later if, and only if, the peak hangs on it (`settled`). What was measured can be kept and loaded again.

    trace = FakeTrace(twin, scratch=ScratchTable(CpuMeter()))
    table.state()                      # JSON; another table's `load` takes it, on the same device and torch only
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mmswap.swap import kernels
from mmswap.swap.event import SCRATCH, Event
from mmswap.swap.meter import CpuMeter, CudaMeter
from mmswap.swap.peak import summits
from mmswap.swap.tracker import tensors_of
from mmswap.units import MIB

_SMALL_BYTES, _SMALL_WORK = MIB, 1e8  # bytes and floating-point operations of a call that is measured at once
_WORK = 6e9  # of a call that is measured because the peak hangs on it; more is cut down and extrapolated
_CONVOLUTION_WORK = 6e10  # the same for convolutions: what oneDNN takes jumps with the rows, and goes along no line
_MEASUREMENTS = 12  # of that kind in one trace


@dataclass(frozen=True, slots=True)
class Recipe:
    """An op with the layouts of its arguments (a meta tensor each): enough to make the call again."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    work: float


class Bound(int):
    """Bytes that a kernel takes at most, and the call that would tell how many it really takes."""

    recipe: Recipe
    key: Hashable


class ScratchTable:
    """Callable as `LiveTracker(scratch=...)` wants it; remembers by shapes, strides and dtypes.

    Args:
        meter: how a call is measured; None never measures and goes by formula alone.
        limit: most bytes that a measured call's operands and results may take.
        rules: the formulas of the device's kernels.
    """

    def __init__(
        self,
        meter: CpuMeter | CudaMeter | None = None,
        limit: int = 512 * MIB,
        rules: Callable[[Any, tuple[Any, ...], Any], int] = kernels.on_the_host,
    ) -> None:
        self._meter = meter
        self._rules = rules
        self._limit = limit
        self._known: dict[Hashable, int] = {}
        self._measured_before: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        """What was measured, with the device and the torch that it holds for; `{}` for a table that never measures."""
        if self._meter is None:
            return {}
        return {**_where(self._meter), "ops": dict(sorted(self._measured_before.items()))}

    def load(self, state: Mapping[str, Any]) -> bool:
        """Takes over what `state` gave; False, and nothing is taken, where it is for another device or is damaged."""
        ops = state.get("ops")
        if self._meter is None or not isinstance(ops, Mapping):
            return False
        if any(state.get(name) != value for name, value in _where(self._meter).items()):
            return False
        if not all(isinstance(op, str) and type(taken) is int and taken >= 0 for op, taken in ops.items()):
            return False
        self._measured_before.update(ops)
        return True

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        if func.namespace == "prim" or func.is_view or _draws(func):
            return 0
        key = (func, _shapes(args), _shapes(tuple(kwargs.values())), _shapes((result,)))
        if key not in self._known:
            self._known[key] = self._find(key, func, args, kwargs, result)
        return self._known[key]

    def _find(self, key: Hashable, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> int:
        text = _text(key)
        if self._meter is not None and text in self._measured_before:
            return self._measured_before[text]
        work = kernels.work(func, args, result)
        size = sum(kernels.nbytes(tensor) for tensor in tensors_of((args, kwargs, result)))
        if self._meter is not None and size <= _SMALL_BYTES and work <= _SMALL_WORK:
            measured = self._meter.scratch(func, args, kwargs)
            if measured is not None:
                self._measured_before[text] = measured
                return measured
        most = self._rules(func, args, result)
        if not kernels.planned_by_library(func, args):
            return most
        if self._meter is None:
            return kernels.likely(args) if most >= kernels.HUGE else most
        bound = Bound(most)
        on_meta = pytree.tree_map_only(Tensor, _on_meta, (tuple(args), dict(kwargs)))
        bound.recipe, bound.key = Recipe(func, on_meta[0], on_meta[1], work), key
        return bound

    def settled(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """`events` with every bound on which the peak hangs replaced by what the kernel really takes."""
        for _ in range(_MEASUREMENTS):
            decisive = _decisive(events)
            if decisive is None:
                break
            measured = self._measured(decisive.recipe)
            if measured is None:
                measured = kernels.likely(decisive.recipe.args) if decisive >= kernels.HUGE else int(decisive)
            settled = min(int(decisive), measured)
            self._known[decisive.key] = settled
            self._measured_before[_text(decisive.key)] = settled
            events = [_settle(event, decisive, settled) for event in events]
        return tuple(events)

    def _measured(self, recipe: Recipe) -> int | None:
        assert self._meter is not None
        size = sum(kernels.nbytes(tensor) for tensor in tensors_of((recipe.args, recipe.kwargs)))
        allowed = _CONVOLUTION_WORK if recipe.func is torch.ops.aten.convolution.default else _WORK
        share = min(allowed / recipe.work, self._limit / size)
        if share >= 1:
            return self._meter.scratch(recipe.func, recipe.args, recipe.kwargs)
        whole, make = kernels.cut(recipe.func, recipe.args)
        few = int(whole * share) // 4
        if few < 1:
            return None
        low = self._meter.scratch(recipe.func, make(few), recipe.kwargs)
        high = self._meter.scratch(recipe.func, make(2 * few), recipe.kwargs)
        if low is None or high is None:
            return None
        return high + max(0, high - low) * (whole - 2 * few) // few + high // 100


def _decisive(events: Sequence[Event]) -> Bound | None:
    """The bound that makes the peak with scratch what it is; None when a known figure does."""
    _, most = summits(events)
    live, deciding = 0, None
    scratch: set[int] = set()
    for event in events:
        if event.op.startswith(SCRATCH):
            scratch.add(event.ident)
            if live + event.delta == most:
                if not isinstance(event.delta, Bound):
                    return None
                deciding = event.delta
        elif event.ident not in scratch:
            live += event.delta
            if live == most:
                return None
    return deciding


def _settle(event: Event, bound: Bound, settled: int) -> Event:
    if isinstance(event.delta, Bound) and event.delta.key == bound.key:
        return replace(event, delta=settled)
    return event


def _where(meter: CpuMeter | CudaMeter) -> dict[str, str]:
    return {"device": meter.identity(), "torch": torch.__version__}


def _text(key: Hashable) -> str:
    """A key as it can be kept: operators by name, layouts as they print."""
    return str(key)


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


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
