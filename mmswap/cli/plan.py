"""`mmswap plan`: what a model would take of a card, before there is either."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli.oneshot import collector_paused
from mmswap.errors import ModelError, OptionError
from mmswap.units import parse_bytes, parse_rate


def plan(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, config.json, hub id in the cache, or profile.")
    ],
    card: Annotated[
        str, typer.Option(help="sim:16GiB, sim:16GiB@24GB/s, a name such as 'RX 7900 XT', cuda, auto or cpu.")
    ] = "auto",
    context: Annotated[
        int | None, typer.Option(help="Tokens of the KV cache. [default: 8192, or what the pictures need]")
    ] = None,
    image: Annotated[str, typer.Option(metavar="WxH", help="Pixels of a picture.")] = "1344x1344",
    images: Annotated[int, typer.Option(help="Pictures of that size in one prompt.")] = 1,
    kv: Annotated[
        str | None, typer.Option(help="fp32, fp16, bf16, fp8, int8 or int4. [default: as the weights]")
    ] = None,
    quantize: Annotated[str | None, typer.Option(help="int4: linear layers of the decoder in 4 bits.")] = None,
    dtype: Annotated[str, typer.Option(help="auto (as stored), float32, float16 or bfloat16.")] = "auto",
    attention: Annotated[str, typer.Option(help="sdpa or eager.")] = "sdpa",
    prefill_chunk: Annotated[int, typer.Option(help="Most prompt tokens of one forward pass.")] = 2048,
    link: Annotated[str | None, typer.Option(help="Host to card, such as 24GB/s. [default: the card's]")] = None,
    vram_limit: Annotated[str | None, typer.Option(help="The most that may be used, such as 14GiB.")] = None,
    reserve: Annotated[
        str | None, typer.Option(help="What others hold, such as 1GiB. [default: 930MiB of a card by name, else 0]")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the card into a PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Calculate what fits on a card: weights, KV cache, pictures. Needs no card and no weights, only a config.

    The exit code is 0 for every plan that could be made, also where the answer is that it does not fit.
    """
    from mmswap.sizing.room import room_of
    from mmswap.sizing.wish import Wish, picture_size

    width, height = picture_size(image)
    wish = Wish(width, height, images, context, kv, quantize, prefill_chunk)
    if dtype not in ("auto", "float32", "float16", "bfloat16"):
        raise OptionError("--dtype must be auto, float32, float16 or bfloat16.")
    if attention not in ("sdpa", "eager"):
        raise OptionError("--attention must be sdpa or eager.")
    held, limit = _bytes("--reserve", reserve), _bytes("--vram-limit", vram_limit)
    with collector_paused():
        room = room_of(card, reserve=held, limit=limit, link=_rate(link))
        sizing = _sized(model, room, wish, dtype, attention)
    if png is not None:
        _draw(sizing, png)
    if as_json:
        print(json.dumps(sizing.to_json(), ensure_ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")))
        return
    from mmswap.cli import plan_page

    plan_page.show(sizing)


def _sized(model: str, room: Any, wish: Any, dtype: str, attention: str) -> Any:
    """Imported here and not before: torch and transformers take longer than all mistakes in the options."""
    if not model.strip():
        raise ModelError("The name of the model is empty: give a folder, a config.json, or a hub id.")
    import torch

    from mmswap.blueprint import Blueprint
    from mmswap.sizing.sizer import size_up

    wanted = None if dtype == "auto" else getattr(torch, dtype)
    return size_up(Blueprint.of(model, attention=attention, dtype=wanted), room, wish)


def _draw(sizing: Any, png: Path) -> None:
    from mmswap.sizing.drawing import draw

    try:
        draw(sizing).save(png, format="PNG")
    except OSError as error:
        raise OptionError(f"--png {png} cannot be written: {error.strerror or error}.") from None


def _bytes(flag: str, text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise OptionError(f"{flag}: {error}") from None


def _rate(text: str | None) -> int | None:
    try:
        return None if text is None else parse_rate(text)
    except ValueError as error:
        raise OptionError(f"--link: {error}") from None
