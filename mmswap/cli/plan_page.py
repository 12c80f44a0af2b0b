"""A `Sizing` on a terminal: tables, two bars of the card, and the reasons. Reads well without colours and in ASCII."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmswap.sizing.answer import FITS, HOST, NOT, NOTICE, ONE_BY_ONE, Sizing
from mmswap.sizing.bar import cells, colour, letter
from mmswap.units import format_bytes

_WIDEST = 100


def show(sizing: Sizing, console: Console | None = None) -> None:
    """Print the page on standard output."""
    console = console or Console(highlight=False, soft_wrap=False)
    plain = not (console.encoding or "").lower().replace("-", "").startswith("utf")
    width = max(24, min(_WIDEST, console.width))
    console.print(Text(f"{sizing.model} on {sizing.card}", style="bold"), width=width)
    console.print(
        Text(headline(sizing), style="bold green" if sizing.fits == FITS and not sizing.doubt else "bold yellow"),
        width=width,
    )
    console.print(Text(NOTICE), width=width)
    console.print()
    console.print(_groups(sizing, plain), width=width)
    for name, held in sizing.moments.items():
        console.print(Text(f"The card {name}:"), width=width)
        console.print(_bar(held, width))
        console.print(_legend(held, sizing.shortfall, width), width=width)
        console.print()
    console.print(_limits(sizing, plain), width=width)
    for reason in sizing.reasons[1:]:
        console.print(Text(f"{'-' if plain else '·'} {reason}"), width=width)


def headline(sizing: Sizing) -> str:
    """The answer in one sentence; a second one where a figure is not known."""
    doubt = f" This may be wrong: {sizing.doubt}." if sizing.doubt else ""
    return _answer(sizing) + doubt


def _answer(sizing: Sizing) -> str:
    picture = f"{sizing.encoding.width}x{sizing.encoding.height}"
    what = picture if sizing.encoding.images == 1 else f"{sizing.encoding.images} of {picture}"
    if sizing.fits == FITS:
        return f"It fits, {what} included: nothing is evicted."
    if sizing.fits == NOT:
        return f"It does not fit: {format_bytes(sizing.shortfall)} are missing."
    if sizing.fits == HOST:
        return f"The encoder does not fit for {what}, {format_bytes(sizing.shortfall)} are missing: it runs on the CPU."
    if not sizing.evict:
        return f"It fits one picture at a time, {what} included: nothing is evicted."
    units = "1 unit gives" if len(sizing.evict) == 1 else f"{len(sizing.evict)} units give"
    one = ", one picture at a time" if sizing.fits == ONE_BY_ONE else ""
    return (
        f"It fits with a window: for {what}{one}, {units} way ({format_bytes(sizing.lent)}, {sizing.window_ms:.0f} ms)."
    )


def _groups(sizing: Sizing, plain: bool) -> Table:
    table = _table(plain, "on the card", "bytes", "share")
    for name, size in sizing.groups.items():
        if size:
            table.add_row(Text(f"{letter(name)} {name}"), format_bytes(size), f"{size / sizing.total:.1%}")
    table.add_row(Text(f"{letter('free')} free"), format_bytes(sizing.free), f"{sizing.free / sizing.total:.1%}")
    table.add_row(Text("  the card", style="bold"), format_bytes(sizing.total), "100.0%")
    table.add_section()
    e = sizing.encoding
    rows = (
        ("encoder's peak", e.peak),
        ("pixels", e.pixels),
        ("features", e.features),
        ("needed, with margin", sizing.need),
    )
    deficit = (("deficit", sizing.deficit),) if sizing.fits != NOT else ()
    for name, size in (*rows, *deficit, ("prefill step", sizing.scratch)):
        table.add_row(f"  {name}", format_bytes(size), f"{size / sizing.total:.1%}")
    if sizing.shortfall:
        table.add_row("  missing", format_bytes(sizing.shortfall), f"{sizing.shortfall / sizing.total:.1%}")
    return table


def _limits(sizing: Sizing, plain: bool) -> Table:
    """One column where nothing can be evicted; beside a size that is capped any larger one fits."""
    e, limits = sizing.encoding, sizing.limits
    each = "picture" if e.images == 1 else f"each of {e.images}"
    sizes, pixels = (limits.image, limits.image_with_window), (limits.pixels, limits.pixels_with_window)
    rows: tuple[tuple[Any, ...], ...] = (
        ("context (tokens)", limits.context, limits.context_with_window),
        (f"{each} ({e.width}x{e.height} asked)", *(_size(size, limits.cap) for size in sizes)),
        (
            f"{each} (pixels)",
            *("any" if size[0] and size == limits.cap else count for size, count in zip(sizes, pixels)),
        ),
    )
    heads = ("without eviction", "with a window") if sizing.swaps else ("",)
    table = _table(plain, "the largest that fits", *heads)
    for name, *cells_ in rows:
        table.add_row(name, *(str(cell or "none") for cell in cells_[: len(heads)]))
    return table


def _table(plain: bool, *heads: str) -> Table:
    table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(heads[0], overflow="fold")
    for head in heads[1:]:
        table.add_column(head, justify="right", overflow="fold")
    return table


def _bar(held: Mapping[str, int], width: int) -> Text:
    line = Text("[", no_wrap=True)
    for name, count in cells(held, width - 2).items():
        line.append(letter(name) * count, style=f"{_ink(name)} on {colour(name)}")
    return line.append("]")


def _legend(held: Mapping[str, int], missing: int, width: int) -> Text:
    """Every group with its letter and bytes, as many to a line as it holds; what is missing where that decides."""
    parts = [f"{letter(name)} {name} {format_bytes(size)}" for name, size in held.items() if size > 0]
    if held.get("free", 0) < 0:
        parts.append(f"{format_bytes(missing)} are missing" if -held["free"] == missing else "nothing is free")
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return Text("\n".join(lines))


def _ink(name: str) -> str:
    red, green, blue = (int(colour(name)[place : place + 2], 16) for place in (1, 3, 5))
    return "black" if 299 * red + 587 * green + 114 * blue > 128_000 else "white"


def _size(size: tuple[int, int], cap: tuple[int, int]) -> str:
    """Empty if there is none; what is above the cap costs what the cap does."""
    text = f"{size[0]}x{size[1]}" if size[0] else ""
    return f"any, as {text}" if text and size == cap else text
