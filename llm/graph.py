"""The lean step as a captured graph: what a card runs for one token, recorded once and replayed without the host.

`step, why = open_graph(lean, model)` proves a replayed token against an eager one; where that fails, `step` is the lean
step itself and `why` the reason. `step(token, state)` gives logits either way. Knows torch's CUDA and HIP graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.fast import LeanStep, State, Step
from mmswap.llm.fast.opening import LOOSE, off
from mmswap.llm.fast.rows import Rows

Replay = Callable[[], Tensor]
Record = Callable[[Callable[[], Tensor]], Replay]
OpenCache = Callable[[int], Any]

TOKENS = 3
STEADY = 8  # steps of the same sequences after which a batch is recorded


class NotCaptured(Exception):
    """This step cannot be a graph here; the message is a clause for "because"."""


class GraphStep:
    """A lean step that is replayed. Called like one.

    Attributes:
        captures: how often it was recorded: once for each place in which cache and weights have lain.
    """

    def __init__(self, lean: LeanStep, record: Record) -> None:
        self.lean = lean
        self.begin, self.noting = lean.begin, lean.noting
        self.captures = 0
        self._record = record
        self._replay: Replay | None = None
        self._where: tuple[Any, ...] = ()
        self._state: State | Rows | None = None
        self._steady = 0

    @torch.no_grad()
    def __call__(self, token: int, state: State) -> Tensor:
        """The logits [V] of the token that follows; they are overwritten by the next call.

        A request whose cache is not ours, or has no slots yet, runs eagerly.
        """
        if not state.own:
            return self.lean(token, state)
        state.put(token)
        return self._run(state)[0]

    @torch.no_grad()
    def together(self, tokens: Sequence[int], rows: Rows) -> Tensor:
        """The logits [B, V] of what follows one token of each sequence; overwritten by the next call.

        Recorded once the same sequences have gone together a few times: to record costs more than a few tokens.
        """
        self._steady = self._steady + 1 if rows is self._state else 0
        self._state = rows
        if not rows.whole or self._steady < STEADY:
            return self.lean.together(tokens, rows)
        rows.put(tokens)
        try:
            return self._run(rows)
        except BaseException:
            rows.take_back()
            raise

    def leave(self, state: State) -> None:
        """A request is over: what was recorded of it goes, and its cache with that."""
        if self._state is state or (isinstance(self._state, Rows) and state in self._state.states):
            self._replay, self._where, self._state = None, (), None

    def _run(self, state: State | Rows) -> Tensor:
        where = self._places(state)
        if self._replay is None or where != self._where:
            self._replay = None  # its memory first
            self._replay = self._record(lambda: self.lean.forward(state))
            self._where = where
            self.captures += 1
        return self._replay()

    def _places(self, state: State | Rows) -> tuple[Any, ...]:
        """All addresses; looked up again when the request or the size of its cache is another."""
        key = state.key
        if self._state is state and self._where and self._where[0] == key:
            return self._where
        self._state = state
        return (key, state.addresses(), self.lean.addresses())


def open_graph(lean: LeanStep, open_cache: OpenCache, record: Record | None = None) -> tuple[Step, str | None]:
    """The lean step as a graph, if a replayed token gives what an eager one gives.

    Args:
        open_cache: an empty cache of ours with room for so many tokens.
        record: how a function is captured; None: as torch does it on this card.
    """
    if record is None:
        if lean.device.type != "cuda":
            return lean, "a processor has no graphs"
        record = captured
    try:
        step = GraphStep(lean, record)
        _prove(lean, step, open_cache)
    except NotCaptured as why:
        return lean, str(why)
    return step, None


def captured(run: Callable[[], Tensor]) -> Replay:
    """Record what `run` launches; it runs twice before, so that nothing is set up while it is recorded.

    Raises:
        NotCaptured: it asks the card for a number, or does something else that a graph cannot hold.
    """
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(aside):
            run()
            run()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            logits = run()
    except RuntimeError as error:
        torch.cuda.synchronize()
        raise NotCaptured(f"it cannot be recorded: {str(error).splitlines()[0]}") from error

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def _prove(lean: LeanStep, step: GraphStep, open_cache: OpenCache) -> None:
    states = []
    for _ in range(2):
        cache = open_cache(TOKENS + 1)
        state = lean.begin(cache, 0)
        if not state.own:
            raise NotCaptured("its cache is not ours alone")
        states.append(state)
    for token in range(1, 1 + TOKENS):
        with torch.no_grad():
            wanted = lean(token, states[0]).clone()
            given = step(token, states[1])
        worst = off(given, wanted)
        if not worst <= LOOSE[wanted.dtype]:
            raise NotCaptured(f"a replayed token differs by {worst:.1e} of the largest logit")
