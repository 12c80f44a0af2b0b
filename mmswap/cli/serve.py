"""`mmswap serve`: the OpenAI-compatible server."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from mmswap.cli.options import CARDS, Attention, Dtype, Quantize, QuantizeHead, number, require_kinds, whole
from mmswap.config import BACKENDS, KV_KINDS, RunConfig
from mmswap.errors import OptionError
from mmswap.units import parse_bytes

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
KEY = "MMSWAP_API_KEY"


def serve(
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
    max_waiting: Annotated[int, whole("N", "Requests that may wait; more are told to come again.")] = 32,
    idle_unload: Annotated[
        float | None,
        number("SECONDS", "Give the card back after so long without a request; load again for the next."),
    ] = None,
    card: Annotated[str, typer.Option(metavar="CARD", help=f"{CARDS}.")] = "auto",
    vram_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Use no more of the card, for example 14GiB.")
    ] = None,
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    quantize_head: QuantizeHead = False,
    attention: Attention = "sdpa",
    context: Annotated[
        int | None,
        whole("TOKENS", "Of prompt and answer together.", show_default="the model's, or what fits"),
    ] = None,
    decode: Annotated[
        str, typer.Option(metavar="HOW", help="auto, or model: every token through the model's own forward.")
    ] = "auto",
    backend: Annotated[
        str, typer.Option(metavar="NAME", help=f"What computes the ops: {', '.join(BACKENDS)}.")
    ] = "auto",
    no_autotune: Annotated[
        bool, typer.Option("--no-autotune", help="Do not measure kernels for this model at its first load on a card.")
    ] = False,
    kv: Annotated[str, typer.Option(metavar="KIND", help=f"How the KV cache is kept: {', '.join(KV_KINDS)}.")] = "auto",
    kv_unsafe: Annotated[
        bool, typer.Option("--kv-unsafe", help="Use an fp8 cache even where it is known to go wrong.")
    ] = False,
    prefill_chunk: Annotated[int, whole("TOKENS", "Most tokens of the prompt in one forward pass.")] = 2048,
    mmproj_swap_layers: Annotated[
        int, whole("N", "Units to evict for an image: -1 as many as needed, 0 never, N always N.")
    ] = -1,
    no_mmproj_offload: Annotated[
        bool, typer.Option("--no-mmproj-offload", help="Run the vision tower on the CPU; nothing is evicted then.")
    ] = False,
    image_min_pixels: Annotated[int | None, whole("PIXELS", "Enlarge pictures below this many pixels.")] = None,
    image_max_pixels: Annotated[int | None, whole("PIXELS", "Shrink pictures above this many pixels.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that the checkpoint brings.")
    ] = False,
) -> None:
    """Serve a model to OpenAI clients and browsers.

    /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, and a chat page.

    It listens on this machine alone unless --host says otherwise, and answers while the model is still loading.
    """
    require_kinds(dtype, attention)
    config = RunConfig.of(
        card=card,
        vram_limit=vram_limit,
        dtype=dtype,
        quantize=quantize,
        quantize_head=quantize_head,
        context=context,
        attention=attention,
        decode=decode,
        backend=backend,
        autotune=not no_autotune,
        kv=kv,
        kv_unsafe=kv_unsafe,
        prefill_chunk=prefill_chunk,
        trust_remote_code=trust_remote_code,
        image_min_pixels=image_min_pixels,
        image_max_pixels=image_max_pixels,
        mmproj_swap_layers=mmproj_swap_layers,
        no_mmproj_offload=no_mmproj_offload,
    )
    keys = api_key or ([os.environ[KEY]] if os.environ.get(KEY) else [])
    from mmswap.server.config import ServerConfig

    settings = ServerConfig(
        host=host,
        port=port,
        name=name or _name_of(model),
        api_keys=tuple(keys),
        cors_origins=tuple(cors_origin or ()),
        allow_hosts=tuple(allow_host or ()),
        allow_image_urls=allow_image_urls,
        max_body=_size(max_body),
        max_images=max_images,
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


def _name_of(model: str | None) -> str:
    """The last part of a folder or hub id."""
    if model is None:
        return "seer"
    return Path(model).resolve().name if Path(model).exists() else model


def _size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise OptionError(f"--max-body: {error}") from None


def _say(sentence: str) -> None:
    print(f"mmswap: {sentence}", file=sys.stderr, flush=True)
