"""`GET /events`: the picture of the card whenever it changes, as server-sent events, until the client leaves.

Each event is `data: {JSON of look(engine)}`; a comment keeps the connection open while nothing changes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from mmswap.server.engine import STOPPING, Engine
from mmswap.server.picture_of_card import look
from mmswap.server.sending import HEADERS, Gone, left, sending

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

EVERY = 0.1  # seconds between two looks
QUIET = 15.0  # seconds after which something is sent in any case


def card_events(request: Request, engine: Engine) -> Response:
    """The response of the module."""
    return _Events(request, engine)


class _Events(Response):
    media_type = "text/event-stream"

    def __init__(self, request: Request, engine: Engine) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._request, self._engine = request, engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(left(self._request))
        try:
            async with sending(send, self.raw_headers) as put:
                await self._tell(put, watch)
        except Gone:
            pass
        finally:
            watch.cancel()

    async def _tell(self, put: Any, watch: asyncio.Future[None]) -> None:
        shown, quiet = "", 0.0
        while not watch.done() and self._engine.state != STOPPING:
            seen = json.dumps(await run_in_threadpool(look, self._engine))
            if seen != shown:
                await put(f"data: {seen}\n\n")
                shown, quiet = seen, 0.0
            elif quiet >= QUIET:
                await put(": still here\n\n")
                quiet = 0.0
            quiet += EVERY
            await asyncio.wait({watch}, timeout=EVERY)
