"""What can be chosen for the server, as one frozen dataclass. Knows no web framework and no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from mmswap.errors import OptionError
from mmswap.units import MIB

_ORIGIN = re.compile(r"https?://[^/\s]+")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """See `mmswap serve --help`.

    Attributes:
        name: what the model is called in requests; None takes it from the checkpoint.
        api_keys: any of them opens the API; none: everybody on `host` may use it.
        cors_origins: pages of other origins whose scripts may use the API, `https://example.org` each.
        allow_hosts: names beside this machine's own that a request's Host header may have.
        max_body: bytes of one request. max_images: pictures of one request.
        parallel: answers under way at a time.
        max_waiting: requests that may wait for their turn. max_waiting_bytes: of their decoded pictures.
        idle_unload: seconds without a request after which the model is given up; None never.
        stuck_after: seconds without a sign of life of a running answer after which `/health` says 503.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    allow_image_urls: bool = False
    max_body: int = 64 * MIB
    max_images: int = 32
    parallel: int = 4
    max_waiting: int = 32
    max_waiting_bytes: int = 1024 * MIB
    idle_unload: float | None = None
    stuck_after: float = 300.0

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, f"--port {self.port}: a port is a number from 0 (any free one) to 65535.")
        _require(all(key.strip() for key in self.api_keys), "--api-key must not be empty.")
        _require(all(key.isascii() and key.isprintable() for key in self.api_keys), "--api-key must be plain ASCII.")
        for origin in self.cors_origins:
            good = bool(_ORIGIN.fullmatch(origin))
            _require(good, f"--cors-origin {origin}: write scheme, host and port, for example https://example.org.")
        _require(self.max_body >= 1024, "--max-body must be 1KiB or more.")
        _require(self.max_images >= 0, "--max-images must be 0 or more.")
        _require(1 <= self.parallel <= 64, f"--parallel {self.parallel}: from 1 to 64 answers at a time.")
        _require(self.max_waiting >= 0, "--max-waiting must be 0 or more.")
        _require(self.idle_unload is None or self.idle_unload > 0, "--idle-unload must be above 0 seconds.")
        _require(self.stuck_after > 0, "stuck_after must be above 0 seconds.")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def name_of(model: str | None) -> str:
    """What requests call a model: the last part of its folder, or its hub id."""
    if model is None:
        return "seer"
    return Path(model).resolve().name if Path(model).exists() else model


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own and nobody else's."""
    if host.lower().rstrip(".") in ("localhost",) or host.lower().endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise OptionError(sentence)
