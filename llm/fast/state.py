"""One request on its way through a lean step: its cache, and where its next token stands.

The step reads everything that changes from token to token from one small tensor on the card, so that a captured step
can be replayed: `state.put(token)` writes it. Knows caches, no layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmswap.llm.fast.calls import bind
from mmswap.llm.kv import KvCache
from mmswap.llm.kv.layer import SETTLE

if TYPE_CHECKING:
    from mmswap.llm.fast.attention import Attention
    from mmswap.llm.fast.rope import Pair


class State:
    """A request whose prompt is in `cache`.

    Attributes:
        tokens: in the cache. position: of the next token; pictures make the two differ.
        ids: int32 [B, 1] on the card: the token of each row that is under way. at: int32 [1, 1]: its position.
        start, length: int32 [1] on the card: the slot of that token, and how many there are with it.
        ropes: its pairs (cos, sin).
        own: the cache is ours, preallocated: its slots are written in place.

    Args:
        control: int32 [3 + B] on the card; requests that take turns may share one. All rows stand at one position.
        direct: every layer's attention is ours.
    """

    def __init__(self, cache: Any, position: int | None, control: Tensor, *, direct: bool) -> None:
        self.cache = cache
        self.tokens = int(cache.get_seq_length())
        self.position = self.tokens if position is None else position
        self.stand(control)
        self.ropes: list[Pair] = []
        self.own = direct and isinstance(cache, KvCache) and not cache.kept
        self._ahead = 0
        self._runs: dict[int, tuple[Any, Any]] = {}
        self._looks: dict[int, Any] = {}

    def stand(self, control: Tensor) -> None:
        """Be written to another place on the card."""
        self._control = control
        self.at, self.start, self.length = control[0:1].view(1, 1), control[1:2], control[2:3]
        self.ids = control[3:].view(-1, 1)

    def put(self, *tokens: int) -> None:
        """Take the next token of each row in: room is made for it, and its numbers are written to the card."""
        self.make_room()
        self._control.copy_(torch.tensor(self.take(*tokens), dtype=torch.int32))

    def make_room(self) -> None:
        """A slot for the next token; nothing is taken in yet."""
        if self.own and self._ahead >= SETTLE and self.cache.kind.quantised:  # ranges widen for what was cut off
            self.settle()
        if self.own and self.tokens + 1 > self.cache.capacity:
            self.settle()
            self.cache.grow(self.tokens + 1)
            self._runs.clear()

    def take(self, *tokens: int) -> list[int]:
        """Take the next token of each row in; the numbers that are to be written to the card."""
        numbers = [self.position, self.tokens, self.tokens + 1, *tokens]
        self.tokens += 1
        self.position += 1
        self._ahead += 1
        return numbers

    def take_back(self) -> None:
        """The last token did not go through: its slot is the next one's again.

        Raises:
            ValueError: the cache is not ours, and what it holds by now is not known.
        """
        if not self.own:
            raise ValueError("a cache that is not ours cannot be taken back.")
        self.tokens -= 1
        self.position -= 1
        self._ahead -= 1

    def apart(self, h: Tensor) -> list[tuple[Tensor, State]]:
        """The sequences of a step with their hidden states, for what cannot take several caches at once."""
        return [(h, self)]

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the token's key and value and look at all that there are: q [B,Hq,1,D] -> [B,Hq,1,Dv]."""
        held = self.cache.layers[layer.index]
        if not self.own:
            keys, values = held.update(k, v)
            if 0 < layer.window < keys.shape[2]:  # a cache that does not forget
                keys, values = keys[:, :, -layer.window :], values[:, :, -layer.window :]
            look = self._looks.get(layer.index)
            if look is None:
                look = self._looks[layer.index] = self._bound_look(layer, q, keys, values, None, None)
            seen: Tensor = look(
                q, keys, values, self.length, layer.scale, layer.soft_cap, None, None, layer.sinks, None
            )
            return seen
        if held.store is None:
            held.lazy_initialization(k, v)
        store = held.store
        runs = self._runs.get(layer.index)
        if runs is None:
            runs = self._runs[layer.index] = self._bound(layer, store, q, k, v)
        runs[0](k, v, store.keys, store.values, self.start, store.k_offset, store.k_scale, store.v_scale)
        found: Tensor = runs[1](
            q,
            store.keys,
            store.values,
            self.length,
            layer.scale,
            layer.soft_cap,
            store.k_scale,
            store.v_scale,
            layer.sinks,
            None,
        )
        return found

    def _bound(self, layer: Attention, store: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, Any]:
        """The two ops of a layer, chosen once."""
        scales = (store.k_scale, store.v_scale)
        put = bind("kv_store", k, v, store.keys, store.values, self.start, store.k_offset, *scales)
        return put, self._bound_look(layer, q, store.keys, store.values, *scales)

    def _bound_look(self, layer: Attention, q: Tensor, keys: Tensor, values: Tensor, *scales: Tensor | None) -> Any:
        numbers = (layer.scale, layer.soft_cap)
        return bind("decode_attention", q, keys, values, self.length, *numbers, *scales, layer.sinks, None)

    @property
    def key(self) -> tuple[Any, ...]:
        """Other for another request, and where its cache has grown."""
        return (id(self), self.cache.capacity, self._control.data_ptr())

    def addresses(self) -> tuple[int, ...]:
        """Where everything lies that a captured step finds by its address; empty while the cache has no slots."""
        held = [self._control]
        for layer in self.cache.layers:
            held += [layer.keys, layer.values, layer.k_scale, layer.v_scale, layer.k_offset]
        return tuple(tensor.data_ptr() for tensor in held if tensor is not None)

    def settle(self) -> None:
        """Tell the cache how many tokens were stored in its slots behind its back."""
        if self.own and self._ahead:
            self.cache.advance(self._ahead)
        self._ahead = 0
