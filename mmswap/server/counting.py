"""Counts requests by address and status; pure ASGI middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mmswap.server.metrics import Metrics

KNOWN = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics", "/events", "/")


class Counting:
    """See the module. Addresses that are none of ours count as one."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in KNOWN else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.request(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
