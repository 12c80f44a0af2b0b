"""Pictures from the web, where `--allow-image-urls` allows it: nothing private is ever asked. Knows no messages.

fetch = Fetcher();  data = fetch("https://example.org/cat.jpg")

Every address that a name resolves to must be public, at every redirect, and the one that was checked is the one that is
connected to. Size, time and kind are limited.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urljoin, urlsplit

from mmswap.errors import told
from mmswap.server.refusal import Refusal
from mmswap.units import MIB, format_bytes

REDIRECTS = 3
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))

Resolve = Callable[[str, int], list[str]]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet; what wraps a private one does not."""
    try:
        ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        if any(ip in net for net in _NAT64):
            return False
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)


def resolve(host: str, port: int) -> list[str]:
    """Every address of a name."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Fetcher:
    """See the module.

    Args:
        limit: bytes of one picture. seconds: for all of it, redirects included.
        public, lookup: replaced in tests.
    """

    def __init__(
        self,
        *,
        limit: int = 20 * MIB,
        seconds: float = 10.0,
        public: Callable[[str], bool] = is_public,
        lookup: Resolve = resolve,
    ) -> None:
        self._limit, self._seconds = limit, seconds
        self._public, self._resolve = public, lookup

    def __call__(self, url: str) -> bytes:
        """The bytes behind an address.

        Raises:
            Refusal: 400, with the reason; it does not tell what is behind an address that may not be asked.
        """
        end = time.monotonic() + self._seconds
        for _ in range(REDIRECTS + 1):
            found = self._get(url, end)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _refused(f"The picture's address redirects more than {REDIRECTS} times.")

    def _get(self, url: str, end: float) -> bytes | str:
        """The picture, or where it is instead."""
        parts = _split(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._connect(parts, port, secure, end)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "mmswap"})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308) and (where := answer.getheader("Location")):
                return where
            if answer.status != 200:
                raise _refused(f"The picture's address answers with status {answer.status}.")
            kind = (answer.getheader("Content-Type") or "").partition(";")[0].strip().lower()
            if not kind.startswith("image/"):
                raise _refused("What is at the picture's address does not call itself a picture.")
            return self._read(answer, connection, end)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _refused(f"The picture's address cannot be read: {told(error)[:100]}.") from None
        finally:
            if connection is not None:
                connection.close()

    def _connect(self, parts: SplitResult, port: int, secure: bool, end: float) -> http.client.HTTPConnection:
        host = parts.hostname or ""
        addresses = self._resolve(host, port)
        if not addresses or not all(map(self._public, addresses)):
            raise _refused("The picture's address is not on the public internet.")
        plain = socket.create_connection((addresses[0], port), timeout=_left(end))
        connection = http.client.HTTPConnection(host, port, timeout=_left(end))
        try:
            wrapped = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
        except BaseException:
            plain.close()
            raise
        connection.sock = wrapped
        return connection

    def _read(self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, end: float) -> bytes:
        data = bytearray()
        while True:
            if connection.sock is not None:
                connection.sock.settimeout(_left(end))
            chunk = answer.read1(65536)
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > self._limit:
                raise _refused(f"The picture at that address is larger than {format_bytes(self._limit)}.")
            _left(end)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises for a port that is none
    except ValueError:
        raise _refused("The picture's address is not well formed.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused("Pictures are fetched from http: and https: addresses only.")
    if parts.username is not None or parts.password is not None:
        raise _refused("A picture's address must not hold a user name.")
    return parts


def _left(end: float) -> float:
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("it takes too long")
    return seconds


def _refused(sentence: str) -> Refusal:
    return Refusal(400, sentence, code="image_url_refused")
