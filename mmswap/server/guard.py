"""Who may talk to the server: Host, Origin and key are checked before a byte of a body is read. Pure ASGI middleware.

A web page elsewhere must not drive a server on this machine: neither by its own name (Origin), nor by a name of its own
that resolves to this machine (Host). A person's key is compared in constant time, and never logged.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import JSONResponse, Response

from mmswap.server.config import ServerConfig, is_loopback
from mmswap.server.refusal import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCKED = ("/v1", "/metrics", "/events", "/openapi.json")


class Guard:
    """See the module; wraps the application."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app, self._config = app, config
        self._keys = tuple(key.encode() for key in config.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get("origin")
        allowed = origin is not None and origin in self._config.cors_origins
        try:
            self._check(scope, headers, allowed)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send)
            return
        if allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(str(origin))(scope, receive, send)
            return

        async def with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(b"access-control-allow-origin", str(origin).encode("latin-1")), (b"vary", b"Origin")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self._app(scope, receive, with_origin if allowed else send)

    def _check(self, scope: Scope, headers: Mapping[str, str], allowed: bool) -> None:
        host = headers.get("host", "")
        if not self._keys and not self._knows(_name_of(host)):
            shown = host[:80]
            raise Refusal(403, f"The Host header {shown!r} is none of this server's names (--allow-host adds one).")
        origin = headers.get("origin")
        if origin is not None and not allowed and urlsplit(origin).netloc.lower() != host.lower():
            raise Refusal(403, f"Pages of {origin[:80]!r} may not use this server (--cors-origin lets them).")
        preflight = allowed and scope["method"] == "OPTIONS"  # browsers send it without the key
        if self._keys and _locked(scope["path"]) and not preflight:
            self._check_key(headers.get("authorization", ""))

    def _check_key(self, header: str) -> None:
        scheme, _, key = header.partition(" ")
        given = key.strip().encode("latin-1", "replace")
        matches = [hmac.compare_digest(given, known) for known in self._keys]  # all of them, whichever it is
        if scheme.lower() != "bearer" or not any(matches):
            sentence = "This server wants a key: send the header Authorization: Bearer KEY."
            raise Refusal(401, sentence, code="invalid_api_key", headers={"www-authenticate": "Bearer"})

    def _knows(self, name: str) -> bool:
        """Whether a name or address in a Host header is ours. An address is no name that somebody else could choose."""
        allowed = self._config.allow_hosts
        if is_loopback(name) or "*" in allowed or name in (self._config.host.lower(), *map(str.lower, allowed)):
            return True
        if self._config.local:
            return False
        try:
            ip_address(name)
        except ValueError:
            return name == socket.gethostname().lower()
        return True


def refused(refusal: Refusal) -> JSONResponse:
    """A refusal as a response; the body that was not read is not waited for."""
    headers = {"connection": "close", **refusal.headers}
    return JSONResponse(refusal.body(), status_code=refusal.status, headers=headers)


def _locked(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in LOCKED)


def _name_of(host: str) -> str:
    """`[::1]:8000 -> ::1`, `localhost:8000 -> localhost`."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _preflight(origin: str) -> Response:
    headers = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type",
        "access-control-max-age": "600",
        "vary": "Origin",
    }
    return Response(status_code=204, headers=headers)
