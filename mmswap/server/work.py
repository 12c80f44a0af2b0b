"""One request on its way through the queue and the engine, and what it hears back. Knows no HTTP.

work = Work(owner="ann", parts=(Part(messages, sampling),))
engine.submit(work);  event = await work.hear()              # Piece, Ended, ..., Finished or Failed
work.cancel()                                                # nobody listens any more: it ends within one step
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from mmswap.chat import Prompt
from mmswap.config import SamplingConfig
from mmswap.server.refusal import Refusal

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.llm.decode import Token
    from mmswap.llm.sampling import Constraint


@dataclass(frozen=True, slots=True)
class Part:
    """One answer that is wanted: `prompt` is messages with decoded pictures, or a text as the model reads it."""

    prompt: list[dict[str, Any]] | Prompt
    sampling: SamplingConfig


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of answer `index` as it comes, with the tokens that it is made of."""

    index: int
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer `index` is whole; `tokens` are those that came without text since the last piece."""

    index: int
    answer: Answer
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """Every answer is whole."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It went wrong, and nothing more comes."""

    error: Refusal


Event: TypeAlias = Piece | Ended | Finished | Failed


@dataclass(eq=False, slots=True, weakref_slot=True)
class Work:
    """See the module. To be made in the event loop in which it is heard.

    Attributes:
        owner: whose it is: the owners take turns.
        nbytes: of the pictures that it holds while it waits.
        template: keywords for the chat template.
        constraint: makes what an answer must look like, anew for each part.
    """

    owner: str
    parts: Sequence[Part]
    nbytes: int = 0
    template: Mapping[str, Any] = field(default_factory=dict)
    constraint: Callable[[], Constraint] | None = None
    come: float = field(default_factory=time.monotonic)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def hear(self) -> Event:
        """The next event."""
        return await self._events.get()

    def tell(self, event: Event) -> None:
        """Say something to who listens; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.cancel()

    def cancel(self) -> None:
        """Nobody listens any more; from any thread."""
        self._cancelled.set()

    def gone(self) -> bool:
        """Whether nobody listens any more."""
        return self._cancelled.is_set()
