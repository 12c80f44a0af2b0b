"""One layer's cache that keeps every token: a layer of a transformers `Cache`, on preallocated slots.

    layer = GrowingLayer(kind, capacity=512);  keys, values = layer.update(k, v)      # [B, heads, T so far, D]

What `update` gives is what lies in the store, new tokens included: a prompt read in one pass, in chunks or after a
rewind sees the same numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from mmswap.errors import OptionError
from mmswap.llm.kv.counters import Counters
from mmswap.llm.kv.kinds import Kind, blocks
from mmswap.llm.kv.ranges import FEW, UNEVEN, Ranges, unevenness
from mmswap.llm.kv.store import Store

SETTLE = 32  # tokens that may be stored by somebody else before `advance`: later ones meet wider ranges


class GrowingLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of all tokens so far.

    Attributes:
        tokens: how many have been seen. capacity: slots; more are taken when they are needed.
        keys, values, k_offset, k_scale, v_scale: of the `Store`; None before the first `update`.
        counters: shared by all layers of a cache; the `last` layer to be updated writes them.
        start, length: those on the card.

    Args:
        known: offsets and scales that were measured beforehand; None: taken from the first tokens.
        offsets: keys may be stored less an offset (nothing but a softmax over their products looks at them).
        index: of the layer, for messages.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(
        self, kind: Kind, capacity: int, *, known: Ranges | None = None, offsets: bool = True, index: int = 0
    ) -> None:
        self.store: Store | None = None
        super().__init__()
        self.kind, self.capacity, self.tokens = kind, self._room(capacity), 0
        self.known, self.index = known, index
        self._offsets = offsets
        self._ranges: Ranges | None = None
        self.counters, self.last = Counters(), True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take the slots, now that shapes, dtype and device are known."""
        self.device, self.dtype = key_states.device, key_states.dtype
        self.counters.settle(key_states.device)
        self.store = Store(self.kind, key_states, value_states, self.capacity, offsets=self._offsets)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new tokens; all keys and values so far, [B, heads, T, D], in the dtype that was given.

        Raises:
            OptionError: these keys cannot be kept in this kind without losing the answer.
        """
        store = self._ready(key_states, value_states)
        store.put(key_states, value_states, self.tokens)
        self._seen(key_states.shape[-2])
        return store.get(0, self.tokens, key_states.dtype)

    def advance(self, tokens: int) -> None:
        """So many tokens were stored in the slots behind the last one by somebody else."""
        self.tokens += tokens
        self._settle(tokens)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that `update` will give for so many new tokens, number of the first)."""
        return self.tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1

    def keepable(self, tokens: int) -> bool:
        """Whether everything after the first `tokens` can be forgotten, and these are all there."""
        return tokens <= self.tokens

    def crop(self, tokens: int) -> None:
        """Keep the first `tokens`, or drop the last `-tokens` where that is negative; see `keepable`."""
        self.tokens = max(0, self.tokens + tokens) if tokens < 0 else min(self.tokens, tokens)
        self._seen(0)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens at the least. The tensors get other addresses."""
        wanted = self._room(capacity)
        if wanted > self.capacity:
            self.capacity = wanted
            if self.store is not None:
                self.store.resize(wanted, self._used())

    def reset(self) -> None:
        """Forget all tokens, and overwrite them."""
        self.tokens, self._ranges = 0, None
        self._seen(0)
        if self.store is not None:
            self.store.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise NotImplementedError("there is no search in beams on this cache")

    def bytes_per_token(self) -> int:
        """Bytes of one slot, all rows of the batch."""
        if self.store is None:
            return 0
        batch, heads, _, width = self.store.keys.shape
        return batch * self.kind.bytes_per_token(heads, width, self.store.values.shape[-1])

    def overhead_bytes(self) -> int:
        if self.store is None:
            return 0
        return self.kind.overhead_bytes(self.store.keys.shape[1], self.store.keys.shape[-1])

    @property
    def nbytes(self) -> int:
        """Really held."""
        return self.store.nbytes if self.store is not None else 0

    @property
    def whole(self) -> bool:
        """It will never need more slots."""
        return False

    @property
    def start(self) -> Tensor | None:
        return self.counters.start

    @property
    def length(self) -> Tensor | None:
        return self.counters.length

    @property
    def k_offset(self) -> Tensor | None:
        return self.store.k_offset if self.store is not None else None

    @property
    def k_scale(self) -> Tensor | None:
        return self.store.k_scale if self.store is not None else None

    @property
    def v_scale(self) -> Tensor | None:
        return self.store.v_scale if self.store is not None else None

    @property
    def keys(self) -> Tensor | None:
        return self.store.keys if self.store is not None else None

    @keys.setter
    def keys(self, value: Tensor | None) -> None:
        assert value is None  # transformers' constructor says that there is none yet

    @property
    def values(self) -> Tensor | None:
        return self.store.values if self.store is not None else None

    @values.setter
    def values(self, value: Tensor | None) -> None:
        assert value is None

    def _seen(self, tokens: int) -> None:
        """So many more."""
        self.tokens += tokens
        if self.last:
            self.counters.follow(self.tokens)

    def _room(self, capacity: int) -> int:
        return blocks(max(1, capacity))

    def _used(self) -> int:
        """Slots that hold something, counted from the first."""
        return self.tokens

    def _ready(self, k: Tensor, v: Tensor) -> Store:
        """The store, with slots and scales for what is about to come."""
        if not self.is_initialized:
            self.lazy_initialization(k, v)
        assert self.store is not None
        self.grow(self.tokens + k.shape[-2])
        if self.kind.quantised and k.shape[-2]:
            self._fit(self.store, k, v)
        return self.store

    def _fit(self, store: Store, k: Tensor, v: Tensor) -> None:
        if self._ranges is None:
            self._ranges = ranges = self._first(k, v)
            store.rescale(ranges, 0, 0)
        elif self.known is None and self.kind.float8 and self.tokens < FEW:
            held = store.get(*self._held(), torch.float32)
            self._judge(*(torch.cat((old, new.float()), 2) for old, new in zip(held, (k, v))))
        wider = self._ranges.holding(self.kind, k, v)
        if wider is not None:
            self._ranges = wider
            store.rescale(wider, *self._held())

    def _held(self) -> tuple[int, int]:
        """First slot and number of the tokens that are kept."""
        return 0, self.tokens

    def _settle(self, tokens: int) -> None:
        """Widen the channels in which one of the last `tokens` was cut off."""
        if self._ranges is None or self.store is None or not self.kind.quantised:
            return
        first, held = self._held()
        recent = min(held, tokens)
        beyond = self.store.cut(first + held - recent, recent)
        if bool(beyond.any()):
            self._ranges = self._ranges.wider(beyond)
            self.store.rescale(self._ranges, first, held)

    def _first(self, k: Tensor, v: Tensor) -> Ranges:
        """What was measured beforehand, else what these tokens show."""
        if self.known is not None:
            try:
                known = self.known.at(k.shape[1], k.shape[-1], k.device)
                if self.known.scales_only:
                    return replace(known, k_offset=Ranges.seen(self.kind, k, v).k_offset)
                return known
            except ValueError as error:
                raise OptionError(f"The offsets of layer {self.index} are another model's: {error}.") from None
        return self._judge(k, v)

    def _judge(self, k: Tensor, v: Tensor) -> Ranges:
        """The ranges of the first tokens of a text, if 8 bits hold them; one token alone tells too little."""
        ranges = Ranges.seen(self.kind, k, v, offsets=self._offsets)
        times = unevenness(self.kind, k, v, ranges)
        if times > UNEVEN and k.shape[-2] >= 2:
            raise OptionError(
                f"--kv {self.kind.name} would answer wrongly: in layer {self.index} one channel is {times:.0f} times "
                "larger than most, and 8-bit floats lose the others. Use --kv int8, or run `mmswap profile --kv`."
            )
        return ranges
