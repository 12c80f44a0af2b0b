"""Tokens of several answers, taken through the model at once. Knows steps and what answers want; no cards, no text.

batch = open_batch(decoding, caching.open, far=4096)
batch.take([generation.wanted for generation in generations])      # then each goes on, with its logits there
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mmswap.llm.decode import Wanted
from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import Step
from mmswap.llm.fast.proof import cannot_batch
from mmswap.llm.fast.rows import Rows


class Batch:
    """See the module.

    Attributes:
        why: why every answer computes its tokens by itself, in turn: a clause for "because"; None if they go together.
    """

    def __init__(self, decoding: Decoding, why: str | None) -> None:
        self.why = why
        self._decoding = decoding
        self._rows: Rows | None = None

    def take(self, wanted: Sequence[Wanted]) -> None:
        """Take these tokens through the model together, where that can be and there are two or more.

        An error is nobody's here: where every cache is whole afterwards each answer tries by itself, and the one whose
        fault it is fails alone; those whose caches are not ours fail with it.
        """
        step = self._decoding.step
        several = [(one, one.state) for one in wanted if one.state is not None]
        if self.why is not None or step is None or len(several) < 2:
            self._rows = None
            return
        rows = self._rows_of([state for _, state in several])
        begun = time.perf_counter()
        try:
            logits = self._through(step, rows, [one.token for one, _ in several])
        except Exception as error:
            self._rows = None
            for one, state in several:
                if not state.own:
                    one.fail(error)
            return
        spent = time.perf_counter() - begun
        for (one, _), row in zip(several, logits):
            one.give(row, spent)

    def leave(self) -> None:
        """Somebody has left: nothing of the last batch is held on to."""
        self._rows = None

    @torch.no_grad()
    def _through(self, step: Step, rows: Rows, tokens: list[int]) -> torch.Tensor:
        with self._decoding.token():
            return step.together(tokens, rows)

    def _rows_of(self, states: list[Any]) -> Rows:
        """The batch of these sequences: the last one, while nobody has come or gone."""
        if self._rows is None or self._rows.states != tuple(states):
            self._rows = Rows(states)
        return self._rows


def open_batch(decoding: Decoding, open_cache: Callable[[int], Any], far: int) -> Batch:
    """A batch of a loaded model, tried out.

    Args:
        far: a position near the end of the context.
    """
    if decoding.step is None:
        return Batch(decoding, "the model keeps its own forward")
    return Batch(decoding, cannot_batch(decoding.step.lean, open_cache, far))
