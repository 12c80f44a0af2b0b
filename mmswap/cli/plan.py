"""`mmswap plan`: what a model would take of a card, before there is either."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from mmswap.cli.oneshot import collector_paused
from mmswap.cli.options import CARDS, Attention, Dtype, Json, require_kinds, whole
from mmswap.config import KV_KINDS, RunConfig
from mmswap.errors import ModelError, OptionError
from mmswap.units import parse_bytes, parse_rate


def plan(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, config.json, hub id in the cache, or shipped profile.")
    ],
    card: Annotated[str, typer.Option(metavar="CARD", help=f"{CARDS}, or a name such as 'RX 7900 XT'.")] = "auto",
    context: Annotated[
        int | None, whole("TOKENS", "Of the KV cache.", show_default="8192, or what the pictures need")
    ] = None,
    image: Annotated[str, typer.Option(metavar="WxH", help="Pixels of a picture.")] = "1344x1344",
    images: Annotated[int, whole("N", "Pictures of that size in one prompt.")] = 1,
    kv: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help=f"{', '.join(KV_KINDS)}.", show_default="as the weights"),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="int4: linear layers of the decoder in 4 bits.", show_default="as stored"),
    ] = None,
    dtype: Dtype = "auto",
    attention: Attention = "sdpa",
    prefill_chunk: Annotated[int, whole("TOKENS", "Most tokens of the prompt in one forward pass.")] = 2048,
    link: Annotated[
        str | None, typer.Option(metavar="RATE", help="Host to card, such as 24GB/s.", show_default="the card's")
    ] = None,
    vram_limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Use no more of the card, for example 14GiB.")
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="What others hold, such as 1GiB.", show_default="930MiB of a card by name, else 0"
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the card into a PNG file.")] = None,
    as_json: Json = False,
) -> None:
    """Calculate what fits on a card: weights, KV cache, pictures. Needs no card and no weights, only a config.

    The exit code is 0 for every plan that could be made, also where the answer is that it does not fit.
    """
    from mmswap.sizing.room import room_of
    from mmswap.sizing.wish import Wish, picture_size

    width, height = picture_size(image)
    wish = Wish(width, height, images, context, kv, quantize, prefill_chunk)
    require_kinds(dtype, attention)
    held, limit = _bytes("--reserve", reserve), RunConfig.of(vram_limit=vram_limit).vram_limit
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
    if not model.strip():
        raise ModelError("The name of the model is empty: give a folder, a config.json, or a hub id.")
    from mmswap.cli.light import travel_light
    from mmswap.sizing.memory import remembered
    from mmswap.sizing.sizer import size_up

    facts = remembered(model, room, dtype=dtype, attention=attention, prepare=travel_light)
    sizing = size_up(facts, room, wish)
    facts.keep()
    return sizing


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
