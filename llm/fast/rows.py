"""Several sequences as the rows of one step, each with a cache, a length and a position of its own.

    rows = Rows([one, other]);  logits = lean.together([5, 7], rows)          # [2, V]

All that works row by row takes them at once; only what touches a cache goes from one to the next. Sequences may come
and go between any two steps: a batch is made anew for others, and costs one small tensor. Knows states, no layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmswap.llm.fast.state import State

if TYPE_CHECKING:
    from mmswap.llm.fast.attention import Attention
    from mmswap.llm.fast.rope import Pair


class Rows:
    """What a lean step is given in place of one state.

    Attributes:
        states: the sequences, in order of the rows.
        ids: int32 [N, 1] on the card. at: int32 [N, 1]: their positions.
        ropes: pairs (cos, sin), a row for each sequence.
    """

    def __init__(self, states: Sequence[State]) -> None:
        self.states = tuple(states)
        self._control = torch.zeros(len(states), 4, dtype=torch.int32, device=states[0].at.device)
        for state, row in zip(self.states, self._control):
            state.stand(row)
        self.at, self.ids = self._control[:, 0:1], self._control[:, 3:4]
        self.ropes: list[Pair] = []

    def put(self, tokens: Sequence[int]) -> None:
        """Take one token of each sequence in."""
        for state in self.states:
            state.make_room()  # may fail, before anything is taken in
        numbers = [state.take(token) for state, token in zip(self.states, tokens, strict=True)]
        self._control.copy_(torch.tensor(numbers, dtype=torch.int32))

    def take_back(self) -> None:
        """The last tokens did not go through. Sequences whose caches are not ours are lost: `whole` says so."""
        for state in self.states:
            if state.own:
                state.take_back()

    @property
    def whole(self) -> bool:
        """Whether a step that fails leaves every sequence as it was."""
        return all(state.own for state in self.states)

    @property
    def key(self) -> tuple[Any, ...]:
        """Other for other sequences, and where a cache has grown."""
        return tuple(state.key for state in self.states)

    def addresses(self) -> tuple[int, ...]:
        """Where everything lies that a captured step finds by its address."""
        return tuple(address for state in self.states for address in state.addresses())

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store each token's key and value and look at all that its sequence has: q [N,Hq,1,D] -> [N,Hq,1,Dv]."""
        rows = zip(self.states, torch.split(q, 1), torch.split(k, 1), torch.split(v, 1))
        return torch.cat([state.attend(layer, *row) for state, *row in rows])

    def apart(self, h: Tensor) -> list[tuple[Tensor, State]]:
        """The sequences with their hidden states and positions, for what cannot take several caches at once."""
        for index, state in enumerate(self.states):
            state.ropes = [(cos.narrow(0, index, 1), sin.narrow(0, index, 1)) for cos, sin in self.ropes]
        return list(zip(torch.split(h, 1), self.states))
