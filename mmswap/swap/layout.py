"""Which bytes tensors occupy, which of them overlap, and where each goes in a slab.

Tensors are looked at as byte intervals of memory: tied, sliced and strided tensors need no special case. Knows no unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ALIGN = 256  # bytes; what kernels with vector loads expect of a tensor's first element

Place = tuple["Span", int] | str
"""Where a tensor goes (its span, and the bytes from the span's begin), or why it stays where it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Bytes that are moved as one piece: one tensor, or several that overlap.

    Attributes:
        nbytes: length.
        offset: bytes from the begin of the slab.
    """

    nbytes: int
    offset: int


@dataclass(slots=True)
class _Interval:
    start: int
    stop: int
    owner: int  # index of the unit, -1 for outside
    tensor: Tensor


def extent(tensor: Tensor) -> int:
    """Bytes from a strided tensor's first element to the end of its last one."""
    if tensor.numel() == 0:
        return 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (reach + 1) * tensor.element_size()


def bytes_around(tensor: Tensor, shift: int, nbytes: int) -> Tensor:
    """uint8 [nbytes] that begin `shift` bytes before the tensor's first element, wherever it lies now."""
    begin = tensor.storage_offset() * tensor.element_size() - shift
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), begin, (nbytes,), (1,))


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def spans_of(units: Sequence[Sequence[Tensor]], outside: Sequence[Tensor]) -> Iterator[tuple[dict[int, Place], int]]:
    """For each unit: the place of each of its tensors by id, and the bytes of the slab."""
    intervals = [_interval(t, owner) for owner, tensors in enumerate(units) for t in tensors if _movable(t) == ""]
    intervals += [_interval(tensor, -1) for tensor in outside if _movable(tensor) == ""]
    clusters: dict[int, list[_Interval]] = {}  # by id of the tensor
    for cluster in _clusters(intervals):
        for interval in cluster:
            clusters.setdefault(id(interval.tensor), cluster)
    for tensors in units:
        yield _place(tensors, clusters)


def _place(tensors: Sequence[Tensor], clusters: dict[int, list[_Interval]]) -> tuple[dict[int, Place], int]:
    places: dict[int, Place] = {}
    spans: dict[int, Span] = {}
    taken: set[int] = set()
    end = 0
    for tensor in tensors:
        cluster = clusters.get(id(tensor))
        why = _movable(tensor) or _shared(cluster or [])
        if why or cluster is None:
            places[id(tensor)] = why
            continue
        if id(cluster) not in spans:
            end = _clear_of(cluster, end, taken)
            spans[id(cluster)] = Span(max(interval.stop for interval in cluster) - cluster[0].start, end)
            end = padded(end + spans[id(cluster)].nbytes)
        span = spans[id(cluster)]
        places[id(tensor)] = (span, tensor.data_ptr() - cluster[0].start)
    return places, end


def _clear_of(cluster: list[_Interval], offset: int, taken: set[int]) -> int:
    """The first offset at which no tensor gets an element offset that one in the slab has already: tools that look for
    ties compare storage and element offset, and two dtypes could meet there."""
    while True:
        elements = {
            (offset + interval.start - cluster[0].start) // interval.tensor.element_size() for interval in cluster
        }
        if not elements & taken:
            taken |= elements
            return offset
        offset += ALIGN


def _movable(tensor: Tensor) -> str:
    """Empty, or why the tensor's bytes cannot be moved into a slab."""
    if type(tensor.data) is not Tensor:
        return f"a {type(tensor.data).__name__} is more than its bytes"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"its layout is {tensor.layout}"
    if tensor.is_conj() or tensor.is_neg():
        return "it is a lazy conjugate or negative"
    if tensor.numel() == 0:
        return "it is empty"
    return ""


def _shared(cluster: list[_Interval]) -> str:
    """Empty, or why an overlapping group of tensors must stay."""
    owners = {interval.owner for interval in cluster}
    if -1 in owners:
        return "it is also used outside of the units"
    if len(owners) > 1:
        return "several units use it"
    if any((interval.start - cluster[0].start) % interval.tensor.element_size() for interval in cluster):
        return "it overlaps a tensor of another element size"
    return ""


def _interval(tensor: Tensor, owner: int) -> _Interval:
    start = tensor.data_ptr()
    return _Interval(start, start + extent(tensor), owner, tensor)


def _clusters(intervals: list[_Interval]) -> Iterator[list[_Interval]]:
    """Groups of intervals that overlap one another on the same device; touching is not overlapping."""
    order = sorted(intervals, key=lambda interval: (str(interval.tensor.device), interval.start, -interval.stop))
    group: list[_Interval] = []
    stop, device = 0, None
    for interval in order:
        if group and (interval.tensor.device != device or interval.start >= stop):
            yield group
            group = []
        if not group:
            stop, device = interval.stop, interval.tensor.device
        group.append(interval)
        stop = max(stop, interval.stop)
    if group:
        yield group


def rest_of(root: nn.Module, inside: set[int]) -> Iterator[Tensor]:
    """Parameters and buffers that modules of `root` hold outside of the modules with the ids `inside`."""
    for module in root.modules():
        if id(module) not in inside:
            for store in (module._parameters, module._buffers):
                yield from (tensor for tensor in store.values() if tensor is not None and not tensor.is_meta)
