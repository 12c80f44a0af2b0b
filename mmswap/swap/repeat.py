"""Blocks that repeat are traced once: a sibling of the same structure, called alike, would give the same lifetimes.

    with no_grad(), FakeTrace(twin) as trace, repeats_skipped(twin, trace):
        tower(twin)(pixels)

A block counts as a repeat when its modules, parameter layouts and settings equal those of an earlier one, and so do
the shapes of its fake arguments and the values of its real ones. Only blocks whose every surviving byte is in their
result are skipped: one that keeps something, or frees what others made, is always run. The lifetimes inside a repeat
are noted again; in a long trace only where it starts from more live bytes than before: elsewhere they cannot reach a
new peak.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from mmswap.swap.fake import FakeTrace, is_fake, mode_of
from mmswap.swap.tracker import Event

_MOST_EVENTS = 1 << 14  # up to which repeats are noted in full, so that a replay sees what they do to an allocator
_FEWEST = 3  # blocks in a list, below which there is nothing to gain
_Plain = (int, float, bool, str, type(None), torch.dtype)


@dataclass(slots=True)
class _Record:
    """What one call of a block did: its events, its result's layout, and the live bytes from which it started."""

    events: list[Event]
    leaves: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int, int] | Any]
    tree: Any
    live: int


@contextmanager
def repeats_skipped(twin: nn.Module, trace: FakeTrace) -> Iterator[None]:
    """Inside the block, calls of list members of `twin` that repeat an earlier one are not run."""
    records: dict[Hashable, _Record | None] = {}
    busy: list[nn.Module] = []
    patched = []
    for blocks in twin.modules():
        if isinstance(blocks, nn.ModuleList) and len(blocks) >= _FEWEST:
            for block in blocks:
                if "forward" not in vars(block):
                    block.forward = _skipping(block, block.forward, twin, trace, records, busy)
                    patched.append(block)
    try:
        yield
    finally:
        for block in patched:
            del block.forward


def _skipping(
    block: nn.Module,
    forward: Callable[..., Any],
    twin: nn.Module,
    trace: FakeTrace,
    records: dict[Hashable, _Record | None],
    busy: list[nn.Module],
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        key = None if busy else _call_key(block, args, kwargs)
        if key is None:
            return forward(*args, **kwargs)
        record = records.get(key)
        if record is not None:
            return _repeat(record, twin, trace)
        before, made, live = len(trace.events), trace.made, trace.live
        busy.append(block)
        try:
            result = forward(*args, **kwargs)
        finally:
            busy.pop()
        records[key] = _recorded(trace, trace.events[before:], made, live, result)
        return result

    return call


def _recorded(trace: FakeTrace, events: list[Event], made: int, live: int, result: Any) -> _Record | None:
    born = {event.ident for event in events if event.delta > 0}
    died = {event.ident for event in events if event.delta < 0}
    leaves, tree = pytree.tree_flatten(result)
    layouts = [_layout(leaf, trace) for leaf in leaves]
    if any(layout is None for layout in layouts) or any(ident <= made for ident in died):
        return None
    kept = {layout[4] for layout in layouts if isinstance(layout, tuple)}
    return _Record(events, layouts, tree, live) if kept == born - died else None


def _layout(leaf: Any, trace: FakeTrace) -> Any:
    """(dtype, shape, stride, offset, ident of the storage); [value] if plain; None if it cannot be made again."""
    if not isinstance(leaf, Tensor):
        return [leaf] if isinstance(leaf, _Plain) else None
    ident = trace.ident_of(leaf)
    if ident is None or not is_fake(leaf):
        return None
    return (leaf.dtype, tuple(leaf.shape), tuple(leaf.stride()), leaf.storage_offset(), ident)


def _repeat(record: _Record, twin: nn.Module, trace: FakeTrace) -> Any:
    outputs = {layout[4] for layout in record.leaves if isinstance(layout, tuple)}
    again = trace.live > record.live or len(trace.events) < _MOST_EVENTS
    record.live = max(record.live, trace.live)
    flats: dict[int, Tensor] = {}
    idents: dict[int, int] = {}
    with _disable_current_modes():
        for event in record.events:
            if event.ident in outputs:
                with mode_of(twin):
                    flats[event.ident] = torch.empty(event.delta, dtype=torch.uint8, device="cpu")
                trace.born(flats[event.ident].untyped_storage(), event.op)
            elif again:
                idents[event.ident] = trace.note(event, idents.get(event.ident))
        leaves = [_made_again(layout, flats) for layout in record.leaves]
    return pytree.tree_unflatten(leaves, record.tree)


def _made_again(layout: Any, flats: dict[int, Tensor]) -> Any:
    if isinstance(layout, list):
        return layout[0]
    dtype, shape, stride, offset, ident = layout
    return flats[ident].view(dtype).as_strided(shape, stride, offset)


def _call_key(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    leaves, tree = pytree.tree_flatten((args, kwargs))
    told: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            told.append((is_fake(leaf), *_tensor_key(leaf)))
        elif isinstance(leaf, _Plain):
            told.append((type(leaf), leaf))
        else:
            return None
    return (_structure(block), str(tree), tuple(told))


def _tensor_key(tensor: Tensor) -> tuple[Hashable, ...]:
    layout = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
    if is_fake(tensor) or tensor.is_floating_point() or tensor.device.type == "meta":
        return layout
    return (*layout, tensor.numpy().tobytes())


def _structure(module: nn.Module) -> Hashable:
    tensors = [*module._parameters.items(), *module._buffers.items()]
    held = tuple((name, None if tensor is None else _tensor_key(tensor)) for name, tensor in tensors)
    plain = tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if isinstance(value, _Plain) and name not in ("layer_idx", "training")
    )
    return (
        type(module),
        held,
        plain,
        tuple((name, _structure(child)) for name, child in module._modules.items() if child),
    )
