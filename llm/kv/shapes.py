"""What the layers of a decoder keep, read from transformers' caches after two dry runs. Knows no architecture by name.

layout = layout_of(dry_run, "model.language_model", survey.own)       # None: it could not be run on shapes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from mmswap.config import SMALLEST_CHUNK
from mmswap.llm.kv.layout import KvLayout, KvRow
from mmswap.swap.dry_run import DryRun


def layout_of(
    dry_run: DryRun,
    decoder: str,
    own: Mapping[int, int | None],
    counts: Sequence[int] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> KvLayout | None:
    """The layout of `decoder`'s cache; None if it cannot be run on shapes.

    Two short prompts tell: what differs between their caches grows with the text. A prefill's cost asks for them too.

    Args:
        decoder: its dotted path. own: layers that are kept in a kind of ours, see `Survey`.
        counts: for each layer, how many are like it; by default it alone.
        extra: arguments that it needs beside embeddings: what cross attention looks at.
    """
    probes = [dry_run.prefill_peak(decoder, SMALLEST_CHUNK * times, **(extra or {})).cache for times in (1, 2)]
    if any(cache is None for cache in probes):
        return None
    small, large = ([_held(layer) for layer in cache.layers] for cache in probes)
    rows: Counter[_Shape] = Counter()
    states = 0
    for index, (before, after) in enumerate(zip(small, large)):
        count = 1 if counts is None else counts[index] if index < len(counts) else 0
        shape = _shape(before, after, index in own)
        if shape is not None:
            rows[shape] += count
        states += count * sum(_bytes(tensor) for name, tensor in before.items() if shape is None or name not in _PAIR)
    return KvLayout(tuple(_row(shape, count) for shape, count in rows.items() if count), states)


class _Shape(NamedTuple):
    heads: int
    width: int
    values: int
    window: int | None
    element: int | None


_PAIR = ("keys", "values")


def _shape(before: Mapping[str, Any], after: Mapping[str, Any], ours: bool) -> _Shape | None:
    """Of a layer whose keys grow with the text, a window's included."""
    keys, values, window = (before.get(name) for name in (*_PAIR, "window"))
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        return None
    if window is None and after["keys"].shape[-2] == keys.shape[-2]:
        return None
    element = None if ours else keys.element_size()
    return _Shape(keys.shape[1], keys.shape[-1], values.shape[-1], window, element)


def _row(shape: _Shape, count: int) -> KvRow:
    values = None if shape.values == shape.width else shape.values
    return KvRow(shape.heads, shape.width, count, shape.window, values, shape.element)


def _held(layer: Any) -> dict[str, Any]:
    """A layer's tensors by name, and its window."""
    return dict(_parts(layer))


def _parts(layer: Any) -> Iterator[tuple[str, Any]]:
    yield "window", getattr(layer, "sliding_window", None)
    for name, value in vars(layer).items():
        for index, tensor in enumerate(pytree.tree_leaves(value)):
            if isinstance(tensor, Tensor) and tensor.numel() > 1:  # counters are no contents
                yield name if index == 0 else f"{name}.{index}", tensor


def _bytes(tensor: Any) -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0
