"""The decode loop: one request from its inputs to its last token. Knows transformers models, no pictures and no text.

`for token in generate(model, inputs, ...): ...` prefills (in chunks) at the first step and decodes one token a step.
Closing it drops the cache. Nothing is held across a `yield`, so that several requests can take turns on one model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.errors import ContextOverflow
from mmswap.llm.decoding import PLAIN, Decoding
from mmswap.llm.division import cache_of
from mmswap.llm.fast import State
from mmswap.llm.kv.caching import Caching
from mmswap.llm.parts import find_parts
from mmswap.llm.prefill import Chunking, chunked
from mmswap.llm.request import Prepared, RequestState, first_inputs, next_inputs, prepare
from mmswap.llm.sampling import Sampler

Replay = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer; ids that end the answer are not handed out."""

    id: int


@dataclass(slots=True)
class Statistics:
    """What the request took so far: tokens and seconds of both phases, and how the prompt was divided and why."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    chunking: Chunking = field(default_factory=Chunking)

    @property
    def prefill_rate(self) -> float | None:
        """Tokens a second, or None before there is anything to divide."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second. The first token is the prefill's, hence one less."""
        steps = self.decode_tokens - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else None


class Generation(Iterator[Token]):
    """A running answer: an iterator of tokens that also tells how it went.

    Attributes:
        statistics: tokens, seconds, chunking; up to date after every token.
        finish_reason: None while it runs, then `stop` (an end id), `length` (max_new_tokens or the context) or
            `cancelled` (`should_stop`, or closed early).
        seed: what the sampler was seeded with.
        cache: the KV cache once the prompt is in it, until the answer ends.
    """

    def __init__(self, steps: Callable[[Generation], Iterator[Token]], prompt_tokens: int, sampler: Sampler) -> None:
        self.statistics = Statistics(prefill_tokens=prompt_tokens)
        self.finish_reason: str | None = None
        self.seed = sampler.seed
        self.cache: Any = None
        self._steps = steps(self)

    def __next__(self) -> Token:
        return next(self._steps)

    def close(self) -> None:
        """End the answer here and drop its cache; may be called at any time, and twice."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._steps.close()  # type: ignore[attr-defined]


def generate(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    sampling: SamplingConfig,
    end_ids: frozenset[int],
    prefill_chunk: int = 2048,
    context: int,
    replay: Replay | None = None,
    should_stop: Callable[[], bool] | None = None,
    decoding: Decoding = PLAIN,
    caching: Caching | None = None,
) -> Generation:
    """Answer one prompt, token by token.

    Args:
        model: an image-text-to-text model of transformers.
        inputs: what the processor gave: `input_ids [1, T]` and, with pictures, pixels, grids, masks.
        end_ids: ids that end the answer; they are not handed out.
        prefill_chunk: most tokens of one prefill pass.
        context: tokens that prompt and answer may hold together.
        replay: makes the context manager in which the model finds its image features (`Tower.replay`).
        should_stop: asked before every step; True ends the answer.
        decoding: how tokens after the prompt are computed (`open_decoding`); as it is, by the model's own forward.
        caching: how keys and values are kept; without it, in transformers' own cache.

    Raises:
        ContextOverflow: at once, if the prompt leaves no room for a token.
        NonFiniteLogits: from the iterator, if the model computed NaN.
    """
    prompt = [int(token) for token in inputs["input_ids"].reshape(-1)]
    if len(prompt) >= context:
        raise ContextOverflow(len(prompt), context)
    room = min(sampling.max_new_tokens, context - len(prompt))
    sampler = Sampler(sampling, prompt)
    request = _Request(model, dict(inputs), room, prefill_chunk, replay, decoding, caching)

    def steps(run: Generation) -> Iterator[Token]:
        try:
            yield from _loop(run, request, sampler, end_ids, room, should_stop or (lambda: False))
        finally:
            request.drop()
            run.cache = None

    return Generation(steps, len(prompt), sampler)


def _loop(
    run: Generation,
    request: _Request,
    sampler: Sampler,
    end_ids: frozenset[int],
    room: int,
    should_stop: Callable[[], bool],
) -> Iterator[Token]:
    statistics, token = run.statistics, -1
    while statistics.decode_tokens < room:
        if should_stop():
            run.finish_reason = "cancelled"
            return
        begun = time.perf_counter()
        if token < 0:
            token = sampler.next(request.prefill(statistics))
            statistics.prefill_seconds = time.perf_counter() - begun
            run.cache = request.cache
        else:
            token = sampler.next(request.step(token))
            statistics.decode_seconds += time.perf_counter() - begun
        if token in end_ids:
            run.finish_reason = "stop"
            return
        statistics.decode_tokens += 1
        if statistics.decode_tokens == room:
            run.finish_reason = "length"
        yield Token(token)


class _Request:
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
        self._running: State | None = None
        self._state = RequestState(model)
        self._prepared: Prepared | None = None
        self._outputs: Any = None

    @torch.no_grad()
    def prefill(self, statistics: Statistics) -> Tensor:
        decoder = find_parts(self._model).decoder
        noting = self._step.noting if self._step is not None else nullcontext
        with self._state.watching(), self._replay(), noting() as noted, self._decoding.prompt():
            tokens = self._inputs["input_ids"].shape[1]
            cache = self._caching.open(tokens) if self._caching is not None else None
            prepared = self._prepared = prepare(self._model, self._inputs, self._room, cache)
            last_only = "logits_to_keep" not in prepared.kwargs
            with chunked(decoder, self._chunk, last_only=last_only) as statistics.chunking:
                self._outputs = prepared.model(**first_inputs(prepared), return_dict=True)
        self._inputs = {}
        self._replay = nullcontext
        if self._step is not None and (cache := cache_of(self._outputs)) is not None:
            self._running = self._step.begin(cache, noted.next if noted is not None else None)
        return self._last_logits()

    @torch.no_grad()
    def step(self, token: int) -> Tensor:
        with self._decoding.token():
            return self._stepped(token)

    def _stepped(self, token: int) -> Tensor:
        if self._running is not None and self._step is not None:
            self._outputs = None
            return self._step(token, self._running)
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
        self._prepared, self._outputs, self._running = None, None, None
        self._inputs, self._replay = {}, nullcontext

    def _last_logits(self) -> Tensor:
        logits: Tensor = self._outputs.logits[0, -1]
        return logits
