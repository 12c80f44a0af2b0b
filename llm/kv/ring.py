"""One layer's cache for sliding attention: the last `window` tokens, in a ring of as many slots.

    layer = RingLayer(kind, window=1024, capacity=4096)

Token number n lies in slot n % slots. Until the window is full it is a `GrowingLayer`; after that a rewind is possible
only as far as nothing that would be seen again has been overwritten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmswap.llm.kv.kinds import Kind
from mmswap.llm.kv.layer import GrowingLayer
from mmswap.llm.kv.ranges import Ranges


class RingLayer(GrowingLayer):
    """Keys and values of the last `window` tokens; `capacity` never exceeds it."""

    is_sliding = True

    def __init__(
        self,
        kind: Kind,
        capacity: int,
        window: int,
        *,
        known: Ranges | None = None,
        offsets: bool = True,
        index: int = 0,
    ) -> None:
        self.sliding_window = window
        super().__init__(kind, capacity, known=known, offsets=offsets, index=index)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new tokens; keys and values of those and of the `window - 1` before them, oldest first."""
        new = key_states.shape[-2]
        store = self._ready(key_states, value_states)
        if self.tokens + new <= self.capacity:
            store.put(key_states, value_states, self.tokens)
            self._seen(new)
            return store.get(0, self.tokens, key_states.dtype)
        past = min(self.tokens, self.sliding_window - 1)
        before = store.get(self.tokens - past, past, key_states.dtype)  # a copy, or a part that is not overwritten yet
        added = store.passed(key_states, value_states)
        seen = torch.cat([before[0], added[0]], 2), torch.cat([before[1], added[1]], 2)
        kept = min(new, self.capacity)
        store.put(key_states[:, :, new - kept :], value_states[:, :, new - kept :], self.tokens + new - kept)
        self._seen(new)
        return seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        past = min(self.tokens, self.sliding_window - 1)
        return past + query_length, self.tokens - past

    def get_max_length(self) -> int:
        return self.sliding_window

    @property
    def whole(self) -> bool:
        return self.capacity == self.sliding_window

    def keepable(self, tokens: int) -> bool:
        """The `window - 1` tokens before the next one must not have been overwritten."""
        return self.tokens - self.capacity <= max(0, tokens - self.sliding_window + 1) and tokens <= self.tokens

    def _room(self, capacity: int) -> int:
        return min(self.sliding_window, super()._room(capacity))

    def _used(self) -> int:
        return min(self.tokens, self.capacity)

    def _held(self) -> tuple[int, int]:
        kept = self._used()
        return self.tokens - kept, kept
