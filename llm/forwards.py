"""The forwards of one request through a transformers model: its prompt in chunks, then one token after another.

forwards = Forwards(model, inputs, room, chunk, replay, decoding, caching)
logits = forwards.prefill(statistics);  logits = forwards.step(token)          # [V]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.decoding import Decoding
from mmswap.llm.division import cache_of
from mmswap.llm.fast import State
from mmswap.llm.kv.cache import KvCache
from mmswap.llm.kv.caching import Caching
from mmswap.llm.kv.prefix import Kept, Key, within_pictures
from mmswap.llm.parts import find_parts
from mmswap.llm.prefill import chunked, seen_ahead
from mmswap.llm.request import Prepared, RequestState, first_inputs, later_inputs, next_inputs, prepare
from mmswap.llm.statistics import Statistics

Replay = Callable[[], AbstractContextManager[None]]


class Forwards:
    """The forwards of one request; `prefill` and `step` give the logits `[V]` of the next token."""

    def __init__(
        self,
        model: Any,
        inputs: dict[str, Any],
        room: int,
        prefill_chunk: int,
        replay: Replay | None,
        decoding: Decoding,
        caching: Caching | None,
    ) -> None:
        self._model, self._inputs, self._room, self._chunk = model, inputs, room, prefill_chunk
        self._replay = replay or nullcontext
        self._decoding, self._caching = decoding, caching
        self._step = decoding.step
        self.running: State | None = None
        self._state = RequestState(model)
        self.layers = find_parts(model).layers
        self._prepared: Prepared | None = None
        self._outputs: Any = None
        self.key: Key | None = None  # of this prompt, if it is to be kept
        self.kept: Kept | None = None  # what it may begin with
        self._fed: list[int] = []

    @torch.no_grad()
    def prefill(self, statistics: Statistics) -> Tensor:
        shared = self.kept.serves(self.key) if self.kept is not None and self.key is not None else 0
        if self.kept is not None and shared:
            return self._resume(self.kept, shared, statistics)
        self.kept = None
        decoder = find_parts(self._model).decoder
        noting = self._step.noting if self._step is not None else nullcontext
        with self._state.watching(), self._replay(), noting() as noted, self._decoding.prompt():
            tokens = self._inputs["input_ids"].shape[1]
            cache = self._caching.open(tokens) if self._caching is not None else None
            prepared = self._prepared = prepare(self._model, self._inputs, self._room, cache)
            last_only = "logits_to_keep" not in prepared.kwargs
            with chunked(decoder, self._chunk, last_only=last_only) as statistics.chunking, self._watched(decoder):
                self._outputs = prepared.model(**first_inputs(prepared), return_dict=True)
        return self._begun(noted)

    def _resume(self, kept: Kept, shared: int, statistics: Statistics) -> Tensor:
        """Read what stands behind the `shared` tokens that are in the cache."""
        tokens = self._inputs["input_ids"].shape[1]
        kept.cache.crop(shared)
        kept.cache.grow(tokens)
        statistics.reused_tokens = shared
        self._state, self.kept = kept.state, None
        inputs = {name: value for name, value in self._inputs.items() if not value.is_floating_point()}
        noting = self._step.noting if self._step is not None else nullcontext
        with self._state.applied(), noting() as noted, self._decoding.prompt():
            prepared = self._prepared = prepare(self._model, inputs, self._room, kept.cache)
            last_only = "logits_to_keep" not in prepared.kwargs
            decoder = find_parts(self._model).decoder
            with chunked(decoder, self._chunk, last_only=last_only) as statistics.chunking:
                self._outputs = prepared.model(**later_inputs(prepared, tokens - shared), return_dict=True)
        return self._begun(noted)

    @contextmanager
    def _watched(self, decoder: Any) -> Iterator[None]:
        """Nothing is kept of a prompt whose words look at the words behind them: the next one has others there."""
        if self.key is None:
            yield
            return
        with seen_ahead(decoder) as seen:
            yield
        if seen.whole or not within_pictures(seen.reach, self.key.pictures):
            self.key = None

    def left(self) -> Kept | None:
        """What the next prompt may begin with."""
        cache = self.cache if self.running is None else self.running.cache
        if self.running is not None:
            self.running.settle()
        if self.key is None or not isinstance(cache, KvCache) or cache.crossing:
            return None
        whole = self.key.followed(self._fed)
        return Kept(whole.first(cache.tokens), cache, self._state) if cache.tokens <= len(whole.units) else None

    def _begun(self, noted: Any) -> Tensor:
        self._inputs = {}
        self._replay = nullcontext
        if self._step is not None and (cache := cache_of(self._outputs)) is not None:
            self.running = self._step.begin(cache, noted.next if noted is not None else None)
        return self._last_logits()

    @torch.no_grad()
    def step(self, token: int) -> Tensor:
        with self._decoding.token():
            return self._stepped(token)

    def fed(self, token: int) -> None:
        """A token has gone, or goes, through the model."""
        self._fed.append(token)
        if self.running is not None:
            self._outputs = None

    def _stepped(self, token: int) -> Tensor:
        self.fed(token)
        if self.running is not None and self._step is not None:
            return self._step(token, self.running)
        assert self._prepared is not None
        with self._state.applied():
            given = next_inputs(self._prepared, self._outputs, token)
            self._outputs = self._prepared.model(**given, return_dict=True)
        return self._last_logits()

    @property
    def cache(self) -> Any:
        """What the model keeps of the prompt, once it has gone through."""
        return cache_of(self._outputs) if self._outputs is not None else None

    def drop(self) -> None:
        """Forget everything: cache, features, outputs."""
        if self.running is not None and self._step is not None:
            self._step.leave(self.running)
        self._prepared, self._outputs, self.running = None, None, None
        self._inputs, self._replay = {}, nullcontext

    def _last_logits(self) -> Tensor:
        logits: Tensor = self._outputs.logits[0, -1]
        return logits
