"""The decode loop: one request from its inputs to its last token. Knows transformers models, no pictures and no text.

`for token in generate(model, inputs, ...): ...` prefills (in chunks) at the first step and decodes one token a step.
Closing it drops the cache. Nothing is held across a `yield`, so that several requests can take turns on one model;
`moves` also stop before each token, so that those of several go through together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.errors import ContextOverflow
from mmswap.llm.decoding import PLAIN, Decoding
from mmswap.llm.forwards import Forwards, Replay
from mmswap.llm.kv.caching import Caching
from mmswap.llm.kv.prefix import Kept, Key
from mmswap.llm.pause import Pause, next_of
from mmswap.llm.sampling import Chosen, Constraint, Sampler
from mmswap.llm.statistics import Statistics
from mmswap.llm.stopping import Meanwhile, Stopped, never, stopping


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the answer; ids that end the answer are not handed out. `chosen`: where logprobs were asked for."""

    id: int
    chosen: Chosen | None = None


Moves: TypeAlias = Generator[Token | Pause, None, None]


class Generation(Iterator[Token]):
    """A running answer: an iterator of tokens that also tells how it went.

    Attributes:
        statistics: tokens, seconds, chunking; up to date after every token.
        finish_reason: None while it runs, then `stop` (an end id), `length` (max_new_tokens or the context) or
            `cancelled` (`should_stop`, or closed early).
        seed: what the sampler was seeded with.
        cache: the KV cache once the prompt is in it, until the answer ends.
        kept: what the next prompt may begin with, if a key was given; once the answer has ended.
        moves: the same tokens, with a `Pause.STEP` before each that is computed after the prompt.
        wanted: at `Pause.STEP` the step that comes next, which may be taken for it.
    """

    def __init__(self, steps: Callable[[Generation], Moves], prompt_tokens: int, sampler: Sampler) -> None:
        self.statistics = Statistics(prefill_tokens=prompt_tokens)
        self.wanted: Wanted | None = None
        self.finish_reason: str | None = None
        self.seed = sampler.seed
        self.cache: Any = None
        self.kept: Kept | None = None
        self.moves = steps(self)

    def __next__(self) -> Token:
        return next_of(self.moves)

    def close(self) -> None:
        """End the answer here and drop its cache; may be called at any time, and twice."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self.moves.close()


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
    meanwhile: Meanwhile | None = None,
    decoding: Decoding = PLAIN,
    caching: Caching | None = None,
    key: Key | None = None,
    kept: Kept | None = None,
    constraint: Constraint | None = None,
) -> Generation:
    """Answer one prompt, token by token.

    Args:
        model: an image-text-to-text model of transformers.
        inputs: what the processor gave: `input_ids [1, T]` and, with pictures, pixels, grids, masks.
        end_ids: ids that end the answer; they are not handed out.
        prefill_chunk: most tokens of one prefill pass.
        context: tokens that prompt and answer may hold together.
        replay: makes the context manager in which the model finds its image features (`Tower.replay`).
        should_stop: asked before every step, and before every layer of the prompt's; True ends the answer.
        meanwhile: called before every layer of the prompt's: others may have their tokens computed.
        decoding: how tokens after the prompt are computed (`open_decoding`); as it is, by the model's own forward.
        caching: how keys and values are kept; without it, in transformers' own cache.
        key: of the prompt, if its keys and values are to be kept for the next one: `Generation.kept`, at the end.
        kept: what an earlier prompt left; what it shares with this one (`kept.serves(key)`) is not read again.
        constraint: what the answer must look like.

    Raises:
        ContextOverflow: at once, if the prompt leaves no room for a token.
        NonFiniteLogits: from the iterator, if the model computed NaN.
    """
    prompt = [int(token) for token in inputs["input_ids"].reshape(-1)]
    if len(prompt) >= context:
        raise ContextOverflow(len(prompt), context)
    room = min(sampling.max_new_tokens, context - len(prompt))
    sampler = Sampler(sampling, prompt, constraint)
    request = Forwards(model, dict(inputs), room, prefill_chunk, replay, decoding, caching)
    request.key, request.kept = key, kept

    def steps(run: Generation) -> Moves:
        try:
            yield from _loop(run, request, sampler, end_ids, room, should_stop or never, meanwhile)
            run.kept = request.left()
        except Stopped:
            run.finish_reason = "cancelled"
        except GeneratorExit:  # whoever reads has read enough; what went through the model is whole
            run.kept = request.left()
            raise
        finally:
            request.drop()
            run.cache = run.wanted = None

    return Generation(steps, len(prompt), sampler)


def _loop(
    run: Generation,
    request: Forwards,
    sampler: Sampler,
    end_ids: frozenset[int],
    room: int,
    should_stop: Callable[[], bool],
    meanwhile: Meanwhile | None,
) -> Moves:
    statistics, token = run.statistics, -1
    while statistics.decode_tokens < room:
        if should_stop():
            run.finish_reason = "cancelled"
            return
        if token < 0:
            begun, theirs = time.perf_counter(), _Timed(meanwhile)
            with stopping(request.layers, should_stop, None if meanwhile is None else theirs):
                logits = request.prefill(statistics)
            token = sampler.next(logits)
            statistics.prefill_seconds = time.perf_counter() - begun - theirs.seconds
            run.cache = request.cache
        else:
            run.wanted = Wanted(token, request)
            yield Pause.STEP
            begun = time.perf_counter()
            logits, spent = run.wanted.taken()
            run.wanted = None
            token = sampler.next(logits)
            statistics.decode_seconds += spent + time.perf_counter() - begun
        if token in end_ids:
            run.finish_reason = "stop"
            return
        statistics.decode_tokens += 1
        if statistics.decode_tokens == room:
            run.finish_reason = "length"
        yield Token(token, sampler.chosen)


class _Timed:
    """Calls something and adds up the seconds that it takes."""

    def __init__(self, call: Meanwhile | None) -> None:
        self.seconds = 0.0
        self._call = call

    def __call__(self) -> None:
        begun = time.perf_counter()
        if self._call is not None:
            self._call()
        self.seconds += time.perf_counter() - begun


class Wanted:
    """A token that is about to go through the model.

    Attributes:
        token: its id. state: of its request, where the model decodes part by part.
    """

    def __init__(self, token: int, request: Forwards) -> None:
        self.token, self.state = token, request.running
        self._request = request
        self._given: tuple[Tensor, float] | None = None
        self._error: Exception | None = None

    @property
    def given(self) -> bool:
        """Whether somebody has taken it through."""
        return self._given is not None

    def give(self, logits: Tensor, seconds: float) -> None:
        """It went through the model beside others, in so many seconds, and is in the state's cache: `logits [V]`."""
        self._request.fed(self.token)
        self._given = logits, seconds

    def fail(self, error: Exception) -> None:
        """It went wrong on its way, and the request with it."""
        self._error = error

    def taken(self) -> tuple[Tensor, float]:
        """The logits, computed here if nobody did, and the seconds that others spent on them."""
        if self._error is not None:
            raise self._error
        return (self._request.step(self.token), 0.0) if self._given is None else self._given
