"""Blocks that repeat are traced once: a sibling of the same structure, called alike, would give the same lifetimes.

    with no_grad(), FakeTrace(twin) as trace, repeats_skipped(twin, trace):
        tower(twin)(pixels)

A block counts as a repeat when its modules, parameter layouts and settings equal those of an earlier one, and so do
the shapes of its fake arguments and the values of its real ones. Only blocks whose every surviving byte is in their
result, or in their own layer of a cache that they were given, are skipped: one that keeps anything else, or frees what
others made, is always run. The lifetimes inside a repeat are noted again; in a long trace only where it starts from
more live bytes than before: elsewhere they cannot reach a new peak.
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

from mmswap.swap.event import Event
from mmswap.swap.fake import FakeTrace, is_fake, mode_of
from mmswap.swap.slot import Slot, is_cache, slot_of

_MOST_EVENTS = 1 << 14  # up to which repeats are noted in full, so that a replay sees what they do to an allocator
_FEWEST = 3  # blocks in a list, below which there is nothing to gain
_Plain = (int, float, bool, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class _Stays:
    """In place of a tensor of a cache's layer that the call left as it was: where it stands there."""

    index: int


@dataclass(frozen=True, slots=True)
class _Real:
    """A real tensor that has its bytes for itself: what stood in it, and the ident of its bytes."""

    values: Tensor
    ident: int


@dataclass(slots=True)
class _Record:
    """What one call of a block did: its events, the layout of its result and of its layer of the cache, and the live
    bytes from which it started."""

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
        slot = None if busy else slot_of(block, (args, kwargs))
        key = None if busy else _call_key(block, args, kwargs, slot)
        if key is None:
            return forward(*args, **kwargs)
        record = records.get(key)
        if record is not None:
            return _repeat(record, twin, trace, slot)
        before, made, live = len(trace.events), trace.made, trace.live
        busy.append(block)
        try:
            result = forward(*args, **kwargs)
        finally:
            busy.pop()
        records[key] = _recorded(trace, trace.events[before:], made, live, result, slot)
        return result

    return call


def _recorded(
    trace: FakeTrace, events: list[Event], made: int, live: int, result: Any, slot: Slot | None
) -> _Record | None:
    born = {event.ident for event in events if event.delta > 0}
    died = {event.ident for event in events if event.delta < 0}
    if slot is not None and slot.others_changed():
        return None
    leaves, tree = pytree.tree_flatten((result, None if slot is None else slot.state()))
    stay = {} if slot is None else {id(leaf): _Stays(i) for i, leaf in enumerate(slot.before)}
    layouts = [stay.get(id(leaf)) or _layout(leaf, trace, cached=slot is not None) for leaf in leaves]
    if any(layout is None for layout in layouts) or any(ident <= made for ident in died):
        return None
    kept = {ident for layout in layouts if (ident := _ident(layout)) is not None}
    return _Record(events, layouts, tree, live) if kept == born - died else None


def _layout(leaf: Any, trace: FakeTrace, cached: bool) -> Any:
    """(dtype, shape, stride, offset, ident of the storage); [value] if plain; None if it cannot be made again.

    Caches hold buffers that began as zeros, so they are real, however fake what was copied into them.
    """
    if not isinstance(leaf, Tensor):
        return [leaf] if isinstance(leaf, _Plain) else None
    ident = trace.ident_of(leaf)
    if ident is None:
        return None
    if not is_fake(leaf):
        alone = leaf.is_contiguous() and leaf.untyped_storage().nbytes() == leaf.nbytes
        with _disable_current_modes():
            return _Real(leaf.clone(), ident) if cached and alone and leaf.is_floating_point() else None
    return (leaf.dtype, tuple(leaf.shape), tuple(leaf.stride()), leaf.storage_offset(), ident)


def _ident(layout: Any) -> int | None:
    if isinstance(layout, _Real):
        return layout.ident
    return layout[4] if isinstance(layout, tuple) else None


def _repeat(record: _Record, twin: nn.Module, trace: FakeTrace, slot: Slot | None) -> Any:
    outputs = {_ident(layout) for layout in record.leaves}
    real = {layout.ident: layout.values for layout in record.leaves if isinstance(layout, _Real)}
    again = trace.live > record.live or len(trace.events) < _MOST_EVENTS
    record.live = max(record.live, trace.live)
    flats: dict[int, Tensor] = {}
    idents: dict[int, int] = {}
    with _disable_current_modes():
        for event in record.events:
            if event.ident in outputs:
                if event.ident in real:
                    flats[event.ident] = real[event.ident].clone()
                else:
                    with mode_of(twin):
                        flats[event.ident] = torch.empty(event.delta, dtype=torch.uint8, device="cpu")
                trace.born(flats[event.ident].untyped_storage(), event.op)
            elif again:
                idents[event.ident] = trace.note(event, idents.get(event.ident))
        leaves = [_made_again(layout, flats, slot) for layout in record.leaves]
    result, state = pytree.tree_unflatten(leaves, record.tree)
    if slot is not None:
        slot.fill(state)
    return result


def _made_again(layout: Any, flats: dict[int, Tensor], slot: Slot | None) -> Any:
    if isinstance(layout, _Stays):
        assert slot is not None, "only a cache's layer has what stays"
        return slot.before[layout.index]
    if isinstance(layout, _Real):
        return flats[layout.ident]
    if isinstance(layout, list):
        return layout[0]
    dtype, shape, stride, offset, ident = layout
    return flats[ident].view(dtype).as_strided(shape, stride, offset)


def _call_key(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], slot: Slot | None) -> Hashable | None:
    """What two calls must share to be alike; None if that cannot be told."""
    leaves, tree = pytree.tree_flatten((args, kwargs))
    told: list[Hashable] = []
    if slot is not None:
        leaves = [None if is_cache(leaf) else leaf for leaf in leaves] + slot.before
        told += [type(slot.layer).__qualname__, slot.first, str(slot.tree)]
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
