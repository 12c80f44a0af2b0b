"""`mmswap serve`: the OpenAI-compatible server."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mmswap.cli.options import number, whole
from mmswap.cli.running import running
from mmswap.config import RunConfig
from mmswap.errors import OptionError
from mmswap.units import parse_bytes

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
KEY = "MMSWAP_API_KEY"


@running
def serve(
    *,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Checkpoint folder or hub id.", show_default="the carried model"),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, whole("PORT", "0 takes any that is free.")] = 8000,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What requests call the model.", show_default="as the checkpoint"),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help=f"Wanted in each request; repeatable. Or {KEY} in the environment."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name of this machine that requests may use; repeatable."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Pages from there may use the server; repeatable."),
    ] = None,
    allow_image_urls: Annotated[
        bool, typer.Option("--allow-image-urls", help="Fetch pictures from public web addresses in requests.")
    ] = False,
    max_body: Annotated[str, typer.Option(metavar="SIZE", help="Of one request.")] = "64MiB",
    max_images: Annotated[int, whole("N", "Pictures of one request.")] = 32,
    parallel: Annotated[int, whole("N", "Answers under way at a time, their tokens computed as one batch.")] = 4,
    max_waiting: Annotated[int, whole("N", "Requests that may wait; more are told to come again.")] = 32,
    idle_unload: Annotated[
        float | None,
        number("SECONDS", "Give the card back after so long without a request; load again for the next."),
    ] = None,
    config: RunConfig,
) -> None:
    """Serve a model to OpenAI clients and browsers.

    /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, and a chat page.

    It listens on this machine alone unless --host says otherwise, and answers while the model is still loading.
    """
    keys = api_key or ([os.environ[KEY]] if os.environ.get(KEY) else [])
    from mmswap.server.config import ServerConfig, name_of

    settings = ServerConfig(
        host=host,
        port=port,
        name=name or name_of(model),
        api_keys=tuple(keys),
        cors_origins=tuple(cors_origin or ()),
        allow_hosts=tuple(allow_host or ()),
        allow_image_urls=allow_image_urls,
        max_body=_size(max_body),
        max_images=max_images,
        parallel=parallel,
        max_waiting=max_waiting,
        idle_unload=idle_unload,
    )
    _run(model, config, settings)


def _run(model: str | None, config: RunConfig, settings: Any) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        names = ", ".join(missing).replace("_", "-")
        raise OptionError(f'The server needs packages that are not installed ({names}): pip install "mmswap[server]".')
    if model is not None and Path(model).is_absolute() and not Path(model).exists():
        raise OptionError(f"There is no folder '{model}': give a checkpoint folder or a hub id.")
    from mmswap.server.listening import serve as listen

    def load(progress: Any) -> Any:
        from mmswap.runtime import load as load_runtime

        return load_runtime(model, config=config, progress=progress)

    try:
        listen(settings, load, _say)
    except KeyboardInterrupt:
        _leave(130)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End at once: everything is closed, and what an interpreter takes down with torch in it takes seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise OptionError(f"--max-body: {error}") from None


def _say(sentence: str) -> None:
    print(f"mmswap: {sentence}", file=sys.stderr, flush=True)
