"""One request under way: its answers in seats beside others', and what is told of them. Knows no HTTP.

    under_way = UnderWay(work, engine);  under_way.go_on(several)      # the next of its prompts takes a seat

Answers to one prompt come one after the other, so that it is read once; those to several may have a seat each.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mmswap.chat import Prompt
from mmswap.place import Member, Place
from mmswap.reuse import Turn
from mmswap.server.refusal import Refusal, refusal_of
from mmswap.server.turns import Trace, goes_on, trace_of
from mmswap.server.work import Ended, Failed, Finished, Part, Piece, Work
from mmswap.several import Several

if TYPE_CHECKING:
    from mmswap.runtime import Runtime
    from mmswap.server.engine import Engine
    from mmswap.stream import Stream

log = logging.getLogger(__name__)
STOPPED = Refusal(503, "The server is stopping.", code="stopping")


class UnderWay:
    """See the module.

    Attributes:
        begun: when it was taken from the queue.
        over: it has ended, well or not.
    """

    def __init__(self, work: Work, engine: Engine) -> None:
        self.work, self.engine = work, engine
        self.begun = time.monotonic()
        self.over = False
        numbered = list(enumerate(work.parts))
        self._left = deque(list(group) for _, group in groupby(numbered, key=lambda part: id(part[1].prompt)))
        self._seated = 0

    def go_on(self, several: Several, *, first: bool = False) -> bool:
        """Give the next prompt a seat; whether there was one."""
        if self.over or not self._left:
            return False
        self._seated += 1
        group = self._left.popleft()
        several.join(_Answering(self, several, deque(group), trace_of(group[0][1].prompt)), first=first)
        return True

    def left(self, several: Several) -> None:
        """A seat of it is free: the next prompt takes it, or all is over."""
        self._seated -= 1
        if not self.go_on(several, first=True) and not self._seated:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Tell how it ended, once."""
        if self.over:
            return
        self.over = True
        self.engine.over(self)
        if error is not None:
            self.work.tell(Failed(refusal_of(error)))
        else:
            self.work.tell(Finished() if self.engine.state != "stopping" else Failed(STOPPED))


class _Answering(Member):
    """The answers to one prompt of a request, in one seat."""

    def __init__(self, under_way: UnderWay, several: Several, parts: deque[tuple[int, Part]], trace: Trace) -> None:
        self._under_way, self._several, self._parts, self._trace = under_way, several, parts, trace
        self._index, self._part = parts.popleft()
        self._told, self._first = 0, 0.0

    def make(self, place: Place) -> Stream:
        work = self._under_way.work
        runtime = self._under_way.engine.runtime
        assert runtime is not None
        return runtime.stream(
            self._part.prompt,
            sampling=self._part.sampling,
            reuse=Turn(self._trace, self._follows),
            should_stop=self.gone,
            constraint=work.constraint() if work.constraint is not None else None,
            template=work.template,
            place=place,
        )

    def inputs(self) -> Any:
        runtime = self._under_way.engine.runtime
        work = self._under_way.work
        return inputs_of(runtime, self._part.prompt, work.template) if runtime is not None and work.nbytes else None

    def gone(self) -> bool:
        """Asked before every layer of the prompt and of the encoder, and before every token."""
        self._under_way.engine.beat()
        return self._under_way.over or self._under_way.work.gone()

    def piece(self, stream: Stream, text: str) -> None:
        work = self._under_way.work
        self._first = self._first or time.monotonic() - work.come
        work.tell(Piece(self._index, text, self._new(stream)))

    def ended(self, stream: Stream) -> None:
        under_way, answer = self._under_way, stream.answer
        under_way.engine.answered(answer, self._first or time.monotonic() - under_way.work.come)
        under_way.work.tell(Ended(self._index, answer, self._new(stream)))
        if self._parts:
            self._several.join(_Answering(under_way, self._several, self._parts, self._trace), first=True)
        else:
            under_way.left(self._several)

    def cut(self) -> None:
        self._under_way.end()

    def failed(self, error: BaseException) -> None:
        self._under_way.end(error)

    def _new(self, stream: Stream) -> tuple[Any, ...]:
        """Tokens that were not told yet."""
        tokens = tuple(stream.tokens[self._told :])
        self._told += len(tokens)
        return tokens

    def _follows(self, last: Any) -> bool:
        """Another answer to the same prompt begins where the prompt ends; the same request anew is read anew."""
        return last is self._trace or goes_on(last, self._trace)


def inputs_of(runtime: Runtime, prompt: list[dict[str, Any]] | Prompt, template: Mapping[str, Any]) -> Any:
    """What the model is given for a prompt with pictures; None for any other, and for one that will be refused."""
    try:
        rendered = prompt if isinstance(prompt, Prompt) else runtime.render(prompt, **template)
        if not rendered.images:
            return None
        return runtime.on_card(runtime.prepare(rendered).inputs)
    except Exception as error:
        log.info("a prompt that waits is not looked at ahead: %s", error)
        return None
