"""One token through the whole language model, part after part, without the library's forward around it.

`logits = lean(token, state)` with `state = lean.begin(cache, noted)`. Weights stay in their modules and are read at
every call, so that evicting and restoring them goes on as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmswap.llm.fast.blocks import Block
from mmswap.llm.fast.linear import Linear
from mmswap.llm.fast.mlp import Gated, Opaque
from mmswap.llm.fast.norm import Norm
from mmswap.llm.fast.rope import Noted, Ropes
from mmswap.llm.fast.rows import Rows
from mmswap.llm.fast.state import State

Tail = Callable[[Tensor], Tensor]


class Step(Protocol):
    """What takes one token after the prompt through a model: a lean step, or the same captured."""

    def noting(self) -> AbstractContextManager[Noted]:
        """Around a prefill: where its positions end."""

    @property
    def lean(self) -> LeanStep:
        """Itself, or what it was captured from."""

    def begin(self, cache: Any, position: int | None) -> State:
        """The state of a request whose prompt is in `cache`; its next token stands at `position`."""

    def __call__(self, token: int, state: State) -> Tensor:
        """The logits [V] of the token that follows `token`, which goes into the state's cache."""

    def together(self, tokens: Sequence[int], rows: Rows) -> Tensor:
        """The logits [B, V] of what follows one token of each sequence; all sequences are as before if it fails."""

    def leave(self, state: State) -> None:
        """A request is over: its cache is held on to no longer."""


class LeanStep:
    """The model's decode step as a chain of blocks.

    Attributes:
        blocks: the chain.
        opaque: why some layers keep their own attention; empty if none does.

    Args:
        modules: all that hold weights of it.
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
        modules: list[nn.Module],
    ) -> None:
        self._embeddings, self._scale = embeddings, scale
        self.ropes, self.blocks = ropes, blocks
        self._head, self._tail = head, tail
        self._modules = modules
        self.opaque = sorted({why for block in blocks if (why := getattr(block.body, "why", None))})
        self.noting, self.seen_at = ropes.noting, ropes.seen_at
        table: Any = embeddings.weight
        self._control = torch.zeros(4, dtype=torch.int32, device=table.device)
        self._layers = sum(not isinstance(block.body, (Gated, Opaque)) for block in blocks)
        joins = [*(block.pre for block in blocks[1:]), norm]
        self._chain = [(block.body, block.post, join) for block, join in zip(blocks, joins)]

    @property
    def lean(self) -> LeanStep:
        """Itself."""
        return self

    def describe(self) -> str:
        """One sentence for `--explain`."""
        kept = f" Some layers keep their own attention: {'; '.join(self.opaque)}." if self.opaque else ""
        return f"{self._layers} layers.{kept}"

    def begin(self, cache: Any, position: int | None) -> State:
        """The state of a request whose prompt is in `cache`; its next token stands at `position`."""
        return State(cache, position, self._control, direct=not self.opaque)

    def begin_many(self, cache: Any, rows: int) -> State:
        """The state of `rows` sequences of one length; `many` takes them on."""
        control = torch.zeros(3 + rows, dtype=torch.int32, device=self.device)
        return State(cache, None, control, direct=not self.opaque)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._control.device

    def addresses(self) -> tuple[int, ...]:
        """Where its weights lie."""
        return tuple(tensor.data_ptr() for part in self._modules for tensor in (*part.parameters(), *part.buffers()))

    def embedded(self, ids: Tensor) -> Tensor:
        """int32 [B, 1] -> what the first layer is given, [B, 1, H]."""
        x: Tensor = self._embeddings(ids)
        return x * self._scale if self._scale != 1.0 else x

    @torch.no_grad()
    def __call__(self, token: int, state: State) -> Tensor:
        """The logits [V] of the token that follows `token`, which goes into the state's cache."""
        state.put(token)
        return self.forward(state)[0]

    @torch.no_grad()
    def many(self, tokens: Sequence[int], state: State) -> Tensor:
        """The logits [B, V] of what follows one token of each row."""
        state.put(*tokens)
        return self.forward(state)

    @torch.no_grad()
    def together(self, tokens: Sequence[int], rows: Rows) -> Tensor:
        """The logits [B, V] of what follows one token of each sequence; all sequences are as before if it fails."""
        rows.put(tokens)
        try:
            return self.forward(rows)
        except BaseException:
            rows.take_back()
            raise

    def leave(self, state: State) -> None:
        """Nothing is held on to."""

    def forward(self, state: State | Rows) -> Tensor:
        """The logits [B, V] of the tokens that `state` holds on the card; nothing here depends on the host."""
        x = self.embedded(state.ids)
        state.ropes = self.ropes.at(x, state.at)
        first = self.blocks[0].pre
        h = x if first is None else first(x)
        for body, post, norm in self._chain:
            y = body(h, state)
            if post is not None:
                y = post(y)
            if norm is None:
                h = x = x + y
            else:
                h, x = norm.joined(y, x)
        logits = self._head(h)
        return (logits if self._tail is None else self._tail(logits))[:, -1]
