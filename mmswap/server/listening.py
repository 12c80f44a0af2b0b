"""The application on a port: says where it listens, loads behind that, and ends within seconds when it is told to.

serve(ServerConfig(port=8000), load)
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from mmswap.errors import MmswapError, OptionError, told
from mmswap.server.app import create_app
from mmswap.server.config import ServerConfig

if TYPE_CHECKING:
    from mmswap.server.engine import Engine, Load

GRACE = 2  # seconds in which connections may end when the server is told to stop
JOIN = 1.0  # seconds in which the engine may end after that
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))

Say = Callable[[str], None]


def serve(config: ServerConfig, load: Load, say: Say = lambda sentence: None) -> None:
    """Listen until Ctrl-C or SIGTERM.

    Args:
        say: told where the server listens, when the model is loaded, and when it stops.

    Raises:
        OptionError: the port cannot be had. MmswapError: the model could not be loaded.
        KeyboardInterrupt: Ctrl-C, after everything has ended but, perhaps, one operation of torch that nothing can end:
            its thread dies with the process.
    """
    listener = bind(config.host, config.port)
    app = create_app(config, load)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = _Server(settings, app.state.engine, say)
    say(f"Listening on {address(listener)}, loading the model.")
    if not config.local and not config.api_keys:
        say(f"Everybody who can reach {config.host} may use this server: --api-key asks them for a key.")
    server.run(sockets=[listener])
    app.state.engine.stop(JOIN)
    failure = app.state.engine.failure
    if failure is not None:
        raise failure if isinstance(failure, MmswapError) else MmswapError(f"Loading failed: {told(failure)}.")
    if server.interrupted:
        raise KeyboardInterrupt


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OptionError: one sentence with what to do.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise OptionError(f"--host {host}: this machine does not know that name or address.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows it would let two programs have one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OptionError(_why(error, host, port)) from None
    return listener


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE or getattr(error, "winerror", 0) in (10048, 10013):
        return f"Port {port} of {host} is in use: give another one with --port, or --port 0 for any that is free."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"Port {port} may not be used by you: give one above 1023 with --port."
    return f"The server cannot listen on {host}, port {port}: {told(error)}."


def address(listener: socket.socket) -> str:
    """Where a person finds it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """Ends its works before its connections, ends itself when the model cannot be loaded, and raises no signal anew.

    Attributes:
        interrupted: it was told by Ctrl-C.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, say: Say) -> None:
        super().__init__(config)
        self.interrupted = False
        self._engine, self._say = engine, say
        self._told = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second time nothing is waited for
        self.should_exit = True
        self.interrupted = self.interrupted or sig == signal.SIGINT

    async def on_tick(self, counter: int) -> bool:
        engine = self._engine
        if engine.loaded.is_set() and not self._told:
            self._told = True
            if engine.failure is None:
                self._say(f"The model is loaded. {engine.how}")
        self.should_exit = self.should_exit or engine.failure is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.stop()
        await super().shutdown(sockets)
