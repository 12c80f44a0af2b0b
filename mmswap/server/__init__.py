"""`mmswap serve`: an OpenAI-compatible server around one runtime. Needs `pip install "mmswap[server]"`.

    app = create_app(ServerConfig(api_keys=("secret",)), load=lambda progress: mmswap.load("checkpoint"))
    serve(config, load)                                      # the same, listening, until Ctrl-C

Requests come in through `guard`, are read by `body` and `asking`, wait in `waiting`, are answered by `engine` on one
thread, and go out through `replies` and `sending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.late import late
from mmswap.server.config import ServerConfig

if TYPE_CHECKING:
    from mmswap.server.app import create_app
    from mmswap.server.listening import serve

__all__ = ["ServerConfig", "create_app", "serve"]

__getattr__ = late(__name__, {"create_app": "app", "serve": "listening"})
