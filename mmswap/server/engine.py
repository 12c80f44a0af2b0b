"""The runtime on its thread: loads the model, answers what waits, gives the card back when nobody asks.

    engine = Engine(load, config);  engine.start()
    engine.submit(work);  ...  engine.stop()

Knows no HTTP. Everything that touches the runtime happens on the one thread; the API asks `state`, `facts` and
`picture` from others.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from mmswap.errors import MmswapError, told
from mmswap.server.config import ServerConfig
from mmswap.server.facts import Facts
from mmswap.server.refusal import Refusal, refusal_of
from mmswap.server.turns import Trace, goes_on, trace_of
from mmswap.server.waiting import Full, Waiting
from mmswap.server.work import Ended, Failed, Finished, Part, Piece, Work

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.runtime import Runtime

log = logging.getLogger(__name__)

Load = Callable[[Callable[[int, int], None]], "Runtime"]
LOADING, READY, UNLOADED, FAILED, STOPPING = "loading", "ready", "unloaded", "failed", "stopping"
STOPPED = Refusal(503, "The server is stopping.", code="stopping")


class Engine:
    """See the module.

    Args:
        load: gives the runtime; called with `progress(done, total)` on the engine's thread.
        on_answer: told every whole answer with the seconds from its coming to its first piece.

    Attributes:
        state: `loading`, `ready`, `unloaded` (loads again for the next request), `failed` or `stopping`.
        facts: of the model, once it was loaded. failure: why it could not be.
        progress: the share of the weights that are loaded.
        runtime: the loaded one, or None.
        running: works under way. window: the report of the last one that opened, for people who watch.
    """

    def __init__(self, load: Load, config: ServerConfig, on_answer: Callable[[Answer, float], None]) -> None:
        self.state = LOADING
        self.facts: Facts | None = None
        self.failure: BaseException | None = None
        self.progress = 0.0
        self.runtime: Runtime | None = None
        self.running: list[Work] = []
        self.window: Any = None
        self.waiting: Waiting[Work] = Waiting(config.max_waiting, config.max_waiting_bytes)
        self.loaded = threading.Event()
        self._load, self._config, self._on_answer = load, config, on_answer
        self._last: Trace | None = None
        self._beat = time.monotonic()
        self._seconds = 1.0  # what a request takes, lately
        self._thread = threading.Thread(target=self._run, name="mmswap-engine", daemon=True)

    def start(self) -> None:
        """Begin to load, and then to answer; once."""
        if not self._thread.is_alive():
            self._thread.start()

    def submit(self, work: Work) -> None:
        """Put a request into the queue.

        Raises:
            Refusal: the queue is full (429), or the server does not answer now (503).
        """
        self.require()
        try:
            self.waiting.put(work)
        except Full:
            if self.state == STOPPING:
                raise STOPPED from None
            seconds = max(1, min(60, round(self._seconds * (len(self.waiting) + 1))))
            raise Refusal(
                429,
                f"{len(self.waiting)} requests wait already: try again in about {seconds} s.",
                code="queue_full",
                headers={"retry-after": str(seconds)},
            ) from None

    def require(self) -> Facts:
        """The model's facts.

        Raises:
            Refusal: there is no model yet, or none any more (503).
        """
        if self.state == STOPPING:
            raise STOPPED
        if self.failure is not None:
            raise Refusal(503, f"The model could not be loaded: {told(self.failure)}.", code="load_failed")
        if self.facts is None:
            sentence = f"The model is loading ({self.progress:.0%}): try again in a moment."
            raise Refusal(503, sentence, code="loading", headers={"retry-after": "2"})
        return self.facts

    @property
    def stuck(self) -> bool:
        """Whether an answer is under way that gave no sign of life for too long."""
        return bool(self.running) and time.monotonic() - self._beat > self._config.stuck_after

    def stop(self, timeout: float | None = None) -> bool:
        """End what runs and what waits; whether the thread has ended within `timeout` seconds."""
        self.state = STOPPING
        for work in self.waiting.close():
            work.tell(Failed(STOPPED))
        for work in list(self.running):
            work.cancel()
            work.tell(Failed(STOPPED))
        if timeout is not None and self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._bring_in()
        except BaseException as error:
            if self.state != STOPPING:
                if not isinstance(error, MmswapError):
                    log.error("The model could not be loaded.", exc_info=error)
                self.failure, self.state = error, FAILED
        self.loaded.set()
        while self.state not in (STOPPING, FAILED):
            work = self.waiting.take(self._config.idle_unload if self.runtime is not None else None)
            if work is not None:
                self._serve(work)
            elif self.state == READY:
                self._give_back()

    def _bring_in(self) -> Runtime:
        self.progress = 0.0

        def advance(done: int, total: int) -> None:
            self._beat = time.monotonic()
            self.progress = done / total if total else 0.0
            if self.state == STOPPING:
                raise STOPPED

        runtime = self._load(advance)
        self.facts = self.facts or Facts.of(runtime)
        self.runtime, self._last, self.progress = runtime, None, 1.0
        if self.state != STOPPING:
            self.state = READY
        return runtime

    def _give_back(self) -> None:
        """Nobody has asked for a while: the card is somebody else's until the next request."""
        runtime, self.runtime, self.state, self._last = self.runtime, None, UNLOADED, None
        if runtime is not None:
            runtime.forget()
            runtime.watch.close()
            if runtime.encoder.pool is not None:
                runtime.encoder.pool.close()
        del runtime
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _serve(self, work: Work) -> None:
        """One request to its end, however it ends."""
        begun = self._beat = time.monotonic()
        self.running.append(work)
        try:
            for _ in self._steps(work):
                self._beat = time.monotonic()
            work.tell(Finished() if self.state != STOPPING else Failed(STOPPED))
        except BaseException as error:
            self._last = None
            work.tell(Failed(refusal_of(error)))
        finally:
            self.running.remove(work)
            self._seconds += 0.3 * (time.monotonic() - begun - self._seconds)

    def _steps(self, work: Work) -> Iterator[None]:
        """The work piece by piece; between two of them other works may have their turn, once several run at a time."""
        if work.gone():
            return
        runtime = self.runtime or self._bring_in()
        before: Part | None = None
        for index, part in enumerate(work.parts):
            if before is None or before.prompt is not part.prompt:
                self._recall(runtime, part)
            before = part
            yield from self._answer(runtime, work, index, part)
            if work.gone():
                return

    def _recall(self, runtime: Runtime, part: Part) -> None:
        """Lets go of what the last conversation left, if this one does not go on with it."""
        trace = trace_of(part.prompt)
        if not goes_on(self._last, trace):
            runtime.forget()
        self._last = trace

    def _answer(self, runtime: Runtime, work: Work, index: int, part: Part) -> Iterator[None]:
        def should_stop() -> bool:  # asked before every layer of the prompt, and every token
            self._beat = time.monotonic()
            return work.gone()

        constraint = work.constraint() if work.constraint is not None else None
        stream = runtime.stream(
            part.prompt,
            sampling=part.sampling,
            reuse=True,
            should_stop=should_stop,
            constraint=constraint,
            template=work.template,
        )
        told_tokens, first = 0, 0.0
        with closing(stream):
            for text in stream:
                first = first or time.monotonic() - work.come
                tokens, told_tokens = tuple(stream.tokens[told_tokens:]), len(stream.tokens)
                work.tell(Piece(index, text, tokens))
                yield
                if work.gone():
                    return
        if work.gone():
            return
        answer = stream.answer
        self.window = answer.window if answer.window.opened else self.window
        self._on_answer(answer, first or time.monotonic() - work.come)
        work.tell(Ended(index, answer, tuple(stream.tokens[told_tokens:])))
