"""The server as a Ray Serve deployment: replicas of the same application, each with a model and a card of its own.

    run(model="checkpoint", replicas=2, server=ServerConfig(port=8000))        # until Ctrl-C
    serve run mmswap.deploy.ray:app model=checkpoint replicas=1 max_replicas=4  # the same, by Ray's own command
    application(...)                                                            # to deploy it yourself

Each replica has its own queue; Ray sends a request to one that has few. Streams stay streams. Needs `mmswap[ray]`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ray import serve

from mmswap.config import RunConfig
from mmswap.deploy.cluster import begin, found_anywhere, share_of_card
from mmswap.errors import MmswapError, OptionError, told
from mmswap.server.config import ServerConfig, name_of

NAME = "mmswap"
AT_ONCE = 2.0  # requests that a replica should have under way and waiting; more, and Ray starts another


def application(
    model: str | None = None,
    *,
    config: RunConfig | None = None,
    server: ServerConfig | None = None,
    replicas: int = 1,
    max_replicas: int | None = None,
) -> Any:
    """What `ray.serve.run` takes.

    Args:
        model: a checkpoint folder that every machine has, or a hub id; None for the carried one.
        server: as of `mmswap serve`; `host` and `port` are where Ray's proxy is to be found.
        replicas: copies of the model. max_replicas: as many more as requests ask for.

    Raises:
        OptionError: the numbers or the card make no sense.
    """
    most = max_replicas or replicas
    if replicas < 1 or most < replicas:
        raise OptionError(f"{replicas} to {most} replicas: give 1 or more, and max_replicas no less.")
    config, server = config or RunConfig(), server or ServerConfig()
    server = replace(server, name=server.name or name_of(model))
    model = found_anywhere(model)
    begin(most)
    scale = {"min_replicas": replicas, "max_replicas": most, "target_ongoing_requests": AT_ONCE}
    numbers = {"num_replicas": replicas} if most == replicas else {"autoscaling_config": scale}

    def build() -> Any:  # on the replica: an application cannot travel
        from mmswap.deploy.ray import loaded_app

        return loaded_app(model, config, server)

    @serve.ingress(build)
    class Replica:
        async def check_health(self) -> None:
            """Ray starts another replica in place of one that raises here."""
            engine = self.app.state.engine  # type: ignore[attr-defined]
            if engine.stuck or engine.failure is not None:
                raise RuntimeError("The replica gives no sign of life.")

    deployed = serve.deployment(
        name=NAME,
        ray_actor_options=share_of_card(config.card),
        max_ongoing_requests=server.max_waiting + 64,  # our own queue says no, with the reason
        health_check_period_s=10,
        graceful_shutdown_timeout_s=5,
        **numbers,
    )(Replica)
    return deployed.bind()


def loaded_app(model: str | None, config: RunConfig, server: ServerConfig) -> Any:
    """The application of one replica, whose model is loaded: Ray sends nothing before.

    Raises:
        MmswapError: the model could not be loaded.
    """
    from mmswap.server.app import create_app

    def load(progress: Any) -> Any:
        from mmswap.runtime import load as load_runtime

        return load_runtime(model, config=config, progress=progress)

    app = create_app(server, load)
    engine = app.state.engine
    engine.start()
    engine.loaded.wait()
    if engine.failure is not None:
        failure = engine.failure
        raise failure if isinstance(failure, MmswapError) else MmswapError(f"Loading failed: {told(failure)}.")
    return app


def run(model: str | None = None, *, server: ServerConfig | None = None, block: bool = True, **more: Any) -> None:
    """Deploy `application(...)` and listen where `server` says.

    Args:
        block: wait for Ctrl-C, and take the deployment down then.
    """
    server = server or ServerConfig()
    made = application(model, server=server, **more)
    serve.start(http_options={"host": server.host, "port": server.port})
    serve.run(made, name=NAME, route_prefix="/")
    if not block:
        return
    try:
        threading.Event().wait()
    finally:
        serve.shutdown()


def app(args: Mapping[str, str]) -> Any:
    """For `serve run mmswap.deploy.ray:app key=value ...`: keys of `application`, `RunConfig.of` and `ServerConfig`.

    Raises:
        OptionError: a key is not known, or its value makes no sense.
    """
    given = {name: _value(text) for name, text in args.items()}
    own = {name: given.pop(name) for name in ("model", "replicas", "max_replicas") if name in given}
    names = {one.name for one in fields(ServerConfig)}
    of_server = {name: given.pop(name) for name in list(given) if name in names}
    for name in ("api_keys", "cors_origins", "allow_hosts"):
        if name in of_server:
            of_server[name] = tuple(str(of_server[name]).split(","))
    return application(**own, server=replace(ServerConfig(), **of_server), config=RunConfig.of(**given))


def _value(text: str) -> Any:
    """Numbers and switches as JSON spells them; everything else is a text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) or value is None else text
