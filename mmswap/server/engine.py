"""The runtime on its thread: loads the model, answers what waits, several at a time, gives the card back when nobody
asks.

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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mmswap.errors import MmswapError, told
from mmswap.server.config import ServerConfig
from mmswap.server.facts import Facts
from mmswap.server.refusal import Refusal
from mmswap.server.under_way import STOPPED, UnderWay, inputs_of
from mmswap.server.waiting import Full, Waiting
from mmswap.server.work import Failed, Work
from mmswap.several import Several

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.runtime import Runtime

log = logging.getLogger(__name__)

Load = Callable[[Callable[[int, int], None]], "Runtime"]
LOADING, READY, UNLOADED, FAILED, STOPPING = "loading", "ready", "unloaded", "failed", "stopping"


class Engine:
    """See the module.

    Args:
        load: gives the runtime; called with `progress(done, total)` on the engine's thread.
        on_answer: told every whole answer with the seconds from its coming to its first piece.

    Attributes:
        state: `loading`, `ready`, `unloaded` (loads again for the next request), `failed` or `stopping`.
        facts: of the model, once it was loaded. failure: why it could not be.
        progress: the share of the weights that are loaded.
        runtime: the loaded one, or None. how: one sentence on how several answers share it.
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
        self._several: Several | None = None
        self._under_way: list[UnderWay] = []
        self._looked_at: WeakSet[Work] = WeakSet()
        self.how = ""
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
            seconds = max(1, min(60, round(self._seconds * (len(self.waiting) + 1) / self._config.parallel)))
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
            self._admit()
            try:
                if self._several is not None:
                    self._several.turn()
            except Exception as error:
                log.error("Answers could not go on.", exc_info=error)
                for under_way in tuple(self._under_way):
                    under_way.end(error)
        if self._several is not None:
            self._several.close()

    def _admit(self) -> None:
        """As many begin as there are seats; without anything to do it waits here, and gives the card back in time."""
        several = self._several
        idle = several is None or not several.busy
        patience = 0.0 if not idle else self._config.idle_unload if self.runtime is not None else None
        work = self.waiting.take(patience) if several is None or several.free else None
        if work is None and idle and self.state == READY:
            self._give_back()
        while work is not None:
            self._begin(work)
            several = self._several
            work = self.waiting.take(0.0) if several is not None and several.free else None
        if several is not None:
            self._spread(several)
            self.waiting.vacant = several.free

    def _begin(self, work: Work) -> None:
        self._beat = time.monotonic()
        under_way = UnderWay(work, self)
        self.running.append(work)
        self._under_way.append(under_way)
        try:
            if work.gone():
                under_way.end()
                return
            if self._several is None:
                self._bring_in()
            assert self._several is not None
            under_way.go_on(self._several)
        except BaseException as error:
            under_way.end(error)

    def _spread(self, several: Several) -> None:
        """Seats that nobody waits for serve the other prompts of requests that have several."""
        for under_way in self._under_way:
            while several.free and under_way.go_on(several):
                pass

    def over(self, under_way: UnderWay) -> None:
        """A request has ended, however it did."""
        self.running.remove(under_way.work)
        self._under_way.remove(under_way)
        self._seconds += 0.3 * (time.monotonic() - under_way.begun - self._seconds)

    def beat(self) -> None:
        """A sign of life of an answer."""
        self._beat = time.monotonic()

    def answered(self, answer: Answer, seconds: float) -> None:
        """An answer is whole; its first piece came after `seconds`."""
        self.window = answer.window if answer.window.opened else self.window
        self._on_answer(answer, seconds)

    @property
    def held(self) -> int:
        """Bytes of the KV caches of all answers that are under way."""
        return self._several.held if self._several is not None else 0

    def _pictures(self) -> list[Any]:
        """Inputs of requests that wait, whose pictures may be encoded with somebody's; of each once."""
        runtime = self.runtime
        if runtime is None:
            return []
        fresh = [work for work in self.waiting.items() if work.nbytes and work not in self._looked_at]
        self._looked_at.update(fresh)
        seen = [inputs_of(runtime, work.parts[0].prompt, work.template) for work in fresh]
        return [inputs for inputs in seen if inputs is not None]

    def _bring_in(self) -> Runtime:
        self.progress = 0.0

        def advance(done: int, total: int) -> None:
            self._beat = time.monotonic()
            self.progress = done / total if total else 0.0
            if self.state == STOPPING:
                raise STOPPED

        runtime = self._load(advance)
        self.facts = self.facts or Facts.of(runtime)
        self._several = Several(runtime, self._config.parallel, self._pictures)
        self.how, self.runtime, self.progress = self._several.how, runtime, 1.0
        if self.state != STOPPING:
            self.state = READY
        return runtime

    def _give_back(self) -> None:
        """Nobody has asked for a while: the card is somebody else's until the next request."""
        runtime, self.runtime, self.state, self._several = self.runtime, None, UNLOADED, None
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
