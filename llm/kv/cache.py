"""The whole cache of one request: a transformers `Cache` whose attention layers are preallocated.

    cache = open_cache(model, capacity=4096, kind=kind)
    model(**inputs, cache=cache, use_cache=True)                  # any unpatched model
    cache.crop(100), cache.grow(8192), cache.reset()

For a lean step that stores and reads by itself: `layer.keys`, `layer.values`, their constants, `cache.start` and
`cache.length` on the card, then `cache.advance(1)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.cache_utils import Cache, CacheLayerMixin

from mmswap.llm.kv.counters import Counters
from mmswap.llm.kv.kinds import Kind
from mmswap.llm.kv.layer import GrowingLayer

_ANY = 2**31 - 1  # what the counters hold


class KvCache(Cache):  # type: ignore[misc]
    """Attributes:
    kind: how keys and values are kept. kept: why a layer is transformers' own, by its index.
    crossing: layers that look at a picture's keys.
    start, length: int32 [1] on the card: the number of the next token, and that plus one.
    """

    def __init__(self, layers: list[Any], kind: Kind, kept: Mapping[int, str], crossing: frozenset[int]) -> None:
        super().__init__(layers=layers)
        self.kind, self.kept, self.crossing = kind, dict(kept), crossing
        self._own = [layer for layer in layers if isinstance(layer, GrowingLayer)]
        self.counters = Counters()
        for layer in self._own:
            layer.counters, layer.last = self.counters, layer is self._own[-1]

    @property
    def start(self) -> Tensor | None:
        return self.counters.start

    @property
    def length(self) -> Tensor | None:
        return self.counters.length

    @property
    def tokens(self) -> int:
        """Tokens that every layer has seen."""
        return self._own[0].tokens if self._own else int(self.get_seq_length())

    @property
    def capacity(self) -> int:
        """Tokens for which there is room without growing; windows that are whole have room for any number."""
        return min((layer.capacity for layer in self._own if not layer.whole), default=_ANY)

    def advance(self, tokens: int, *, on_card: bool = True) -> None:
        """So many tokens have been stored by somebody else; `on_card`: the counters there do not know yet.

        Ranges widen where one of them was cut off: call it every few dozen tokens if the kind is quantised.
        """
        for layer in self._own:
            layer.advance(tokens)
        if on_card:
            self.counters.add(tokens)

    def crop(self, tokens: int) -> int:
        """Keep the first `tokens` (negative: drop as many); how many are really kept.

        What cannot be rewound (a window that has wrapped, a recurrent state) is kept whole or not at all: then 0, and
        the cache is empty.
        """
        wanted = max(0, self.tokens + tokens) if tokens < 0 else min(tokens, self.tokens)
        if wanted == self.tokens:
            return wanted
        if not wanted or not self.keepable(wanted):
            self.reset()
            return 0
        for layer in self._own:
            layer.crop(wanted)
        return wanted

    def keepable(self, tokens: int) -> bool:
        """Whether `crop(tokens)` keeps as many."""
        if tokens in (0, self.tokens):
            return True
        foreign = any(
            index not in self.crossing and not isinstance(layer, GrowingLayer) and _holds(layer)
            for index, layer in enumerate(self.layers)
        )
        return not foreign and all(layer.keepable(tokens) for layer in self._own)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens; addresses change where there was less."""
        for layer in self._own:
            layer.grow(capacity)

    def reset(self) -> None:
        """Forget everything: slots are overwritten with zeros, states dropped."""
        super().reset()

    def bytes_per_token(self) -> int:
        """Bytes of a slot in all layers that keep every token."""
        return sum(layer.bytes_per_token() for layer in self._own if not layer.is_sliding)

    def overhead_bytes(self) -> int:
        """All other bytes: windows, constants, recurrent states, the keys of pictures."""
        windows = sum(layer.bytes_per_token() * layer.capacity for layer in self._own if layer.is_sliding)
        return windows + sum(layer.overhead_bytes() for layer in self._own) + self._foreign_bytes()

    @property
    def nbytes(self) -> int:
        """Really held: `capacity * bytes_per_token() + overhead_bytes()`."""
        return sum(layer.nbytes for layer in self._own) + self._foreign_bytes()

    def _foreign_bytes(self) -> int:
        tensors = [
            leaf
            for layer in self.layers
            if not isinstance(layer, GrowingLayer)
            for leaf in _tensors(layer)
            if leaf.numel() > 1  # counters are no contents
        ]
        return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())


def _tensors(layer: Any) -> list[Tensor]:
    return [leaf for value in vars(layer).values() for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _holds(layer: Any) -> bool:
    """Whether there is anything in it that a rewind would have to undo."""
    if isinstance(layer, CacheLayerMixin):
        return bool(layer.get_seq_length())
    return any(tensor.numel() > 1 for tensor in _tensors(layer))
