"""The card of a `Sizing` as a picture: two bars on a light ground, with a legend in bytes. Drawn with PIL alone."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image, ImageDraw, ImageFont

from mmswap.sizing.answer import FITS, NOT, NOTICE, ONE_BY_ONE, Sizing
from mmswap.sizing.bar import colour
from mmswap.units import format_bytes

WIDTH, MARGIN, BAR = 1400, 56, 92
_GROUND, _INK, _GREY, _LINE = "#fbfbfc", "#1d232b", "#5b6470", "#c9ced6"
_GOOD, _FAIR, _BAD = "#2c7a51", "#9a5b12", "#b3432b"
_LEGEND_COLUMNS, _ROW = 3, 34


def draw(sizing: Sizing) -> Image.Image:
    """An RGB picture, 1400 pixels wide."""
    rows = [-(-len(_shown(held)) // _LEGEND_COLUMNS) for held in sizing.moments.values()]
    height = 284 + sum(BAR + 96 + _ROW * count for count in rows)
    image = Image.new("RGB", (WIDTH, height), _GROUND)
    pen = ImageDraw.Draw(image)
    top = _title(pen, sizing)
    for name, held in sizing.moments.items():
        top = _moment(pen, top, name, held, sizing)
    _foot(pen, top, sizing)
    return image


def _title(pen: ImageDraw.ImageDraw, sizing: Sizing) -> int:
    e = sizing.encoding
    _text(pen, (MARGIN, 40), f"{_short(sizing.model)} on {sizing.card}", 34, _INK, WIDTH - 2 * MARGIN)
    pictures = "1 picture" if e.images == 1 else f"{e.images} pictures"
    what = f"{sizing.context} tokens of {sizing.kv} cache, {pictures} of {e.width}x{e.height}"
    kind = sizing.dtype if sizing.quantize is None else f"{sizing.dtype}, decoder in {sizing.quantize}"
    _text(pen, (MARGIN, 88), f"{kind}, {sizing.attention} attention; {what}", 21, _GREY, WIDTH - 2 * MARGIN)
    _text(
        pen,
        (MARGIN, 124),
        _verdict(sizing),
        23,
        _GOOD if sizing.fits == FITS else _BAD if sizing.fits == NOT else _FAIR,
        WIDTH - 2 * MARGIN,
    )
    return 182


def _verdict(sizing: Sizing) -> str:
    if sizing.fits == FITS:
        return f"Fits: the encoder needs {format_bytes(sizing.need)} and {format_bytes(sizing.free)} are free."
    if sizing.fits == NOT:
        return f"Does not fit: {format_bytes(sizing.shortfall)} are missing."
    if sizing.fits == ONE_BY_ONE and not sizing.evict:
        return f"Fits one picture at a time: so the encoder needs {format_bytes(sizing.need)}; nothing is evicted."
    if not sizing.evict:
        return f"The encoder does not fit: {format_bytes(sizing.shortfall)} are missing. It runs on the CPU."
    units = "1 unit gives" if len(sizing.evict) == 1 else f"{len(sizing.evict)} units give"
    return (
        f"Fits with a window: {units} {format_bytes(sizing.lent)} for a deficit of {format_bytes(sizing.deficit)}, "
        f"back in {sizing.window_ms:.0f} ms."
    )


def _moment(pen: ImageDraw.ImageDraw, top: int, name: str, held: Mapping[str, int], sizing: Sizing) -> int:
    total = sizing.total
    _text(pen, (MARGIN, top), f"The card {name}", 23, _INK, WIDTH - 2 * MARGIN)
    top += 38
    inner = WIDTH - 2 * MARGIN
    whole = max(total, sum(size for part, size in held.items() if part != "free"))
    left, taken = MARGIN, 0
    for part, size in _shown(held).items():
        if part == "free" and size < 0:
            continue
        taken += size
        right = MARGIN + inner * taken // whole
        pen.rectangle((left, top, max(left, right - 1), top + BAR), fill=colour(part))
        if right - left > 3:
            pen.line((right - 1, top, right - 1, top + BAR), fill=_GROUND)
        _inside(pen, left, right, top, part, size)
        left = right
    edge = MARGIN + inner * total // whole
    pen.rectangle((MARGIN, top, edge - 1, top + BAR), outline=_INK, width=2)
    if whole > total:
        pen.rectangle((edge, top, WIDTH - MARGIN - 1, top + BAR), outline=_BAD, width=2)
        if whole - total == sizing.shortfall:  # at the other moment it is another figure, which decides nothing
            _right(pen, top - 34, f"{format_bytes(sizing.shortfall)} are missing")
    return _legend(pen, top + BAR + 16, held, total)


def _inside(pen: ImageDraw.ImageDraw, left: int, right: int, top: int, part: str, size: int) -> None:
    """Name and bytes inside a piece that is wide enough for them."""
    ink = "#ffffff" if _dark(colour(part)) else _INK
    lines = (part, format_bytes(size))
    font = _font(19)
    if max(pen.textlength(line, font=font) for line in lines) + 16 > right - left:
        return
    for row, line in enumerate(lines):
        wide = pen.textlength(line, font=font)
        pen.text(((left + right - wide) / 2, top + BAR / 2 - 26 + 28 * row), line, font=font, fill=ink)


def _legend(pen: ImageDraw.ImageDraw, top: int, held: Mapping[str, int], total: int) -> int:
    parts = list(_shown(held).items())
    rows = -(-len(parts) // _LEGEND_COLUMNS)
    column = (WIDTH - 2 * MARGIN) // _LEGEND_COLUMNS
    for index, (part, size) in enumerate(parts):
        x, y = MARGIN + index // rows * column, top + index % rows * _ROW
        pen.rectangle((x, y + 4, x + 18, y + 22), fill=_BAD if size < 0 else colour(part), outline=_LINE)
        _text(pen, (x + 28, y), f"{part}  {format_bytes(size)}  ({size / total:.1%})", 19, _INK, column - 36)
    return top + rows * _ROW + 30


def _foot(pen: ImageDraw.ImageDraw, top: int, sizing: Sizing) -> None:
    limits = sizing.limits
    plain = f"context {limits.context or 'none'}, picture {_size(limits.image, limits.cap)}"
    window = f"context {limits.context_with_window or 'none'}, picture {_size(limits.image_with_window, limits.cap)}"
    said = f"Largest without eviction: {plain}.  With a window: {window}." if sizing.swaps else f"Largest: {plain}."
    _text(pen, (MARGIN, top), said, 21, _INK, WIDTH - 2 * MARGIN)
    _text(pen, (MARGIN, top + 36), f"{NOTICE} mmswap plan", 18, _GREY, WIDTH - 2 * MARGIN)


def _shown(held: Mapping[str, int]) -> dict[str, int]:
    return {part: size for part, size in held.items() if size > 0 or (part == "free" and size < 0)}


def _size(size: tuple[int, int], cap: tuple[int, int]) -> str:
    text = f"{size[0]}x{size[1]}" if size[0] else "none"
    return f"of any size (as {text})" if size[0] and size == cap else text


def _short(model: str) -> str:
    return model.rstrip("/\\").replace("\\", "/").split("/")[-1] or model


def _dark(shade: str) -> bool:
    red, green, blue = (int(shade[place : place + 2], 16) for place in (1, 3, 5))
    return 299 * red + 587 * green + 114 * blue < 150_000


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _right(pen: ImageDraw.ImageDraw, top: int, text: str) -> None:
    """A line in red that ends at the right margin."""
    font = _font(21)
    pen.text((WIDTH - MARGIN - pen.textlength(text, font=font), top), text, font=font, fill=_BAD)


def _text(pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, ink: str, width: int) -> None:
    """A line that is made smaller, and at last cut, where it is too long."""
    while size > 12 and pen.textlength(text, font=_font(size)) > width:
        size -= 1
    while len(text) > 4 and pen.textlength(text, font=_font(size)) > width:
        text = text[:-4] + "..."
    pen.text(at, text, font=_font(size), fill=ink)
