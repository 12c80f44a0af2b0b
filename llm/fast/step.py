"""One token through the whole language model, part after part, without the library's forward around it.

`logits = lean(token, state)` with `state = lean.begin(cache, noted)`. Weights stay in their modules and are read at
every call, so that evicting and restoring them goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.fast.attention import Attention
from mmswap.llm.fast.blocks import Block
from mmswap.llm.fast.linear import Linear
from mmswap.llm.fast.mlp import Gated, Opaque
from mmswap.llm.fast.norm import Norm
from mmswap.llm.fast.rope import Pair, Ropes
from mmswap.llm.ops import resolve

Tail = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class State:
    """One request on its way: its cache and the position of its next token.

    Attributes:
        ropes: the pairs (cos, sin) of the token that is under way.
        length: tokens in the cache, this one included: int32 [1] on the card.
    """

    cache: Any
    position: int
    tokens: int
    ropes: list[Pair] = field(default_factory=list)
    length: Tensor | None = None
    _positions: Tensor | None = None
    _look: Callable[..., Tensor] | None = None

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the token's key and value and look at all that there are: q [B,Hq,1,D] -> [B,Hq,1,Dv]."""
        keys, values = self.cache.layers[layer.index].update(k, v)
        if 0 < layer.window < keys.shape[2]:  # a cache that does not forget
            keys, values = keys[:, :, -layer.window :], values[:, :, -layer.window :]
        given = (q, keys, values, self.length, layer.scale, layer.soft_cap, None, None, layer.sinks, None)
        if self._look is None:
            self._look, _, _ = resolve("decode_attention", *given)
        return self._look(*given)

    def text_positions(self) -> Tensor:
        """int64 [1, 1]: the position as modules without axes take it."""
        assert self._positions is not None
        return self._positions


class LeanStep:
    """The model's decode step as a chain of blocks.

    Attributes:
        opaque: why some layers keep their own attention; empty if none does.
    """

    def __init__(
        self,
        embeddings: nn.Module,
        scale: float,
        ropes: Ropes,
        blocks: list[Block],
        norm: Norm | None,
        head: Linear,
        tail: Tail | None,
    ) -> None:
        self._embeddings, self._scale = embeddings, scale
        self._ropes, self._blocks = ropes, blocks
        self._norm, self._head, self._tail = norm, head, tail
        self.opaque = sorted({why for block in blocks if (why := getattr(block.body, "why", None))})
        self.noting, self.seen_at = ropes.noting, ropes.seen_at
        self._layers = sum(not isinstance(block.body, (Gated, Opaque)) for block in blocks)
        self._joins = [block.pre for block in blocks[1:]] + [norm]

    def describe(self) -> str:
        """One sentence for `--explain`."""
        kept = f" Some layers keep their own attention: {'; '.join(self.opaque)}." if self.opaque else ""
        return f"{self._layers} layers.{kept}"

    def begin(self, cache: Any, position: int | None) -> State:
        """The state of a request whose prompt is in `cache`; its next token stands at `position`."""
        tokens = int(cache.get_seq_length())
        return State(cache, tokens if position is None else position, tokens)

    @torch.inference_mode()
    def __call__(self, token: int, state: State) -> Tensor:
        """The logits [V] of the token that follows `token`, which goes into the state's cache."""
        weight: Any = self._embeddings.weight
        ids = torch.tensor([[token]], device=weight.device)
        x = self._embeddings(ids)
        if self._scale != 1.0:
            x = x * self._scale
        positions = self._ropes.positions(x, state.position)
        state.ropes = self._ropes.at(x, positions)
        state._positions = ids.new_tensor([[state.position]])
        state.tokens += 1
        state.length = ids.new_tensor([state.tokens], dtype=torch.int32)
        first = self._blocks[0].pre
        h = x if first is None else first(x)
        for block, norm in zip(self._blocks, self._joins):
            y = block.body(h, state)
            if block.post is not None:
                y = block.post(y)
            if norm is None:
                h = x = x + y
            else:
                h, x = norm.joined(y, x)
        logits = self._head(h)
        state.position += 1
        return (logits if self._tail is None else self._tail(logits))[0, -1]
