"""From what the engine tells of a work to HTTP: one JSON object, or server-sent events. A client that leaves ends the
work.

return await answer(request, work, reply, engine, stream=True)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mmswap.server.replies import Reply
from mmswap.server.work import Ended, Event, Failed, Finished, Piece, Work

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from mmswap.answer import Answer
    from mmswap.llm.decode import Token
    from mmswap.server.engine import Engine

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
GONE = 499  # what logs of web servers call a client that left; nobody receives it


class Gone(Exception):
    """The client has left."""


async def answer(request: Request, work: Work, reply: Reply, engine: Engine, *, stream: bool) -> Response:
    """The response to a request whose work is ready to be queued; its status is known before anything is sent.

    Raises:
        Refusal: the work failed before anything was sent.
    """
    watch = asyncio.ensure_future(left(request))
    handed_on = False
    try:
        engine.submit(work)
        first = await _next(work, watch)
        if isinstance(first, Failed):
            raise first.error
        if stream:
            handed_on = True
            return EventStream(work, reply, first, watch)
        return JSONResponse(await _whole(work, reply, first, watch))
    except Gone:
        return Response(status_code=GONE)
    finally:
        if not handed_on:
            watch.cancel()
            work.cancel()
            engine.waiting.drop(work)


async def _whole(work: Work, reply: Reply, event: Event, watch: asyncio.Future[None]) -> dict[str, Any]:
    ended: list[Ended] = []
    tokens: dict[int, list[Token]] = {}
    while not isinstance(event, Finished):
        if isinstance(event, Failed):
            raise event.error
        tokens.setdefault(event.index, []).extend(event.tokens)
        if isinstance(event, Ended):
            ended.append(event)
        event = await _next(work, watch)
    return reply.whole(sorted(ended, key=lambda one: one.index), tokens)


class EventStream(Response):
    """Chunks as they come; after an error an event with `error`; `[DONE]` in any case, and once."""

    media_type = "text/event-stream"

    def __init__(self, work: Work, reply: Reply, first: Event, watch: asyncio.Future[None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._work, self._reply, self._first, self._watch = work, reply, first, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with sending(send, self.raw_headers) as put:
                async for chunk in self._chunks():
                    await put(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n")
                await put("data: [DONE]\n\n")
        except Gone:
            pass
        finally:
            self._work.cancel()
            self._watch.cancel()

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        answers: dict[int, Answer] = {}
        opened: set[int] = set()
        event = self._first
        while not isinstance(event, (Finished, Failed)):
            if event.index not in opened:
                opened.add(event.index)
                for chunk in self._reply.opening(event.index):
                    yield chunk
            for chunk in self._reply.pieces(event) if isinstance(event, Piece) else self._reply.ends(event):
                yield chunk
            if isinstance(event, Ended):
                answers[event.index] = event.answer
            event = await _next(self._work, self._watch)
        if isinstance(event, Failed):
            yield event.error.body()
            return
        for chunk in self._reply.closing([answers[index] for index in sorted(answers)]):
            yield chunk


@asynccontextmanager
async def sending(send: Send, headers: Any) -> AsyncIterator[Callable[[str], Any]]:
    """A response of events: `await put(text)` sends one; a client that left makes it raise `Gone`."""

    async def put(text: str) -> None:
        try:
            await send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True})
        except OSError:
            raise Gone from None

    with suppress(OSError):
        await send({"type": "http.response.start", "status": 200, "headers": headers})
    yield put
    with suppress(OSError):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def left(request: Request) -> None:
    """Returns when the client is gone; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _next(work: Work, watch: asyncio.Future[None]) -> Event:
    """What the work tells next.

    Raises:
        Gone: the client has left.
    """
    hearing = asyncio.ensure_future(work.hear())
    both: set[asyncio.Future[Any]] = {hearing, watch}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            return hearing.result()
        raise Gone
    finally:
        hearing.cancel()
