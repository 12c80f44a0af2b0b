"""Awkward picture files with the right answer for each, drawn here. Knows nothing of mmswap.

`good()` gives files that must be opened, with their size and some of their pixels; `bad()` files that must be refused,
with words that the refusal must hold; `quadrants`, `encode` and `tokens` are there for single tests.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, features

RED, GREEN, BLUE, YELLOW, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 255, 255)
Pixel = tuple[float, float, tuple[int, int, int], int]  # x and y as shares of the side, colour, tolerance


@dataclass(frozen=True)
class Good:
    """A file that must be opened."""

    name: str
    data: bytes
    size: tuple[int, int]
    pixels: tuple[Pixel, ...]


@dataclass(frozen=True)
class Bad:
    """A file that must be refused; the sentence must hold all of `words`."""

    name: str
    data: bytes
    words: tuple[str, ...]


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def quadrants(width: int = 64, height: int = 48) -> Image.Image:
    """Red, green over blue, yellow."""
    array = np.zeros((height, width, 3), np.uint8)
    array[: height // 2, : width // 2], array[: height // 2, width // 2 :] = RED, GREEN
    array[height // 2 :, : width // 2], array[height // 2 :, width // 2 :] = BLUE, YELLOW
    return Image.fromarray(array)


def quarters(tolerance: int) -> tuple[Pixel, ...]:
    places = ((0.25, 0.25, RED), (0.75, 0.25, GREEN), (0.25, 0.75, BLUE), (0.75, 0.75, YELLOW))
    return tuple((x, y, colour, tolerance) for x, y, colour in places)


def middle(colour: tuple[int, int, int], tolerance: int = 0) -> tuple[Pixel, ...]:
    return ((0.5, 0.5, colour, tolerance),)


def halves(left: tuple[int, int, int], right: tuple[int, int, int], tolerance: int = 0) -> tuple[Pixel, ...]:
    return ((0.25, 0.5, left, tolerance), (0.75, 0.5, right, tolerance))


# How to store a picture so that turning it by the EXIF value gives it back upright (the inverse of each value).
UNTURN = {
    1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip


def turned(orientation: int) -> Image.Image:
    method = UNTURN.get(orientation)
    return quadrants() if method is None else quadrants().transpose(method)


def exif(orientation: int) -> bytes:
    data = Image.Exif()
    data[0x0112] = orientation
    return bytes(data.tobytes())


def good() -> Iterator[Good]:
    """Every file that must be opened."""
    yield from _upright()
    yield from _transparent()
    yield from _colours()
    yield from _deep()
    yield from _animated()


def _upright() -> Iterator[Good]:
    sharp = {"quality": 95, "subsampling": 0}
    for value in (*UNTURN, 0, 99):
        data = encode(turned(value), "JPEG", exif=exif(value), **sharp)
        yield Good(f"exif_{value}.jpg", data, (64, 48), quarters(12))
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})):
        data = encode(turned(6), kind, exif=exif(6), **options)
        yield Good(f"exif_6.{kind.lower()}", data, (64, 48), quarters(0))
    broken = encode(quadrants(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage", **sharp)
    yield Good("exif_broken.jpg", broken, (64, 48), quarters(12))
    plain = encode(quadrants(), "JPEG", **sharp)
    yield Good("trailing_garbage.jpg", plain + b"\0" * 5000, (64, 48), quarters(12))
    yield Good("progressive.jpg", encode(quadrants(), "JPEG", progressive=True, **sharp), (64, 48), quarters(12))
    yield Good("really_a_jpeg.png", plain, (64, 48), quarters(12))
    for kind in ("BMP", "PPM", "TIFF"):
        yield Good(f"plain.{kind.lower()}", encode(quadrants(), kind), (64, 48), quarters(0))
    yield Good("plain.webp", encode(quadrants(), "WEBP", lossless=True), (64, 48), quarters(0))
    if features.check("jpg_2000"):
        yield Good("plain.jp2", encode(quadrants(), "JPEG2000"), (64, 48), quarters(0))
    if features.check("avif"):
        yield Good("plain.avif", encode(quadrants(), "AVIF", quality=95), (64, 48), quarters(24))


def _transparent() -> Iterator[Good]:
    noise = np.random.default_rng(7).integers(0, 256, (40, 60, 4), dtype=np.uint8)
    noise[..., 3] = 0
    noise[10:30, 20:40] = (*RED, 255)
    clear = ((0.02, 0.02, WHITE, 0), (0.98, 0.98, WHITE, 0), (0.5, 0.5, RED, 0))
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})):
        yield Good(f"hidden_noise.{kind.lower()}", encode(Image.fromarray(noise), kind, **options), (60, 40), clear)
    half = Image.new("RGBA", (8, 8), (255, 0, 0, 128))
    yield Good("rgba_half.png", encode(half, "PNG"), (8, 8), middle((255, 127, 127), 2))
    yield Good("la_clear.png", encode(Image.new("LA", (8, 8), (0, 0)), "PNG"), (8, 8), middle(WHITE))
    palette = Image.new("P", (8, 4), 0)
    palette.putpalette([10, 20, 30, *BLUE] + [0] * (254 * 3))
    palette.paste(1, (4, 0, 8, 4))
    entries = encode(palette, "PNG", transparency=bytes([0, 255]))
    yield Good("palette_clear_entry.png", entries, (8, 4), halves(WHITE, BLUE))
    yield Good("palette.png", encode(palette, "PNG"), (8, 4), halves((10, 20, 30), BLUE))
    yield Good("clear_index.gif", encode(palette, "GIF", transparency=0), (8, 4), halves(WHITE, BLUE))
    two = Image.new("RGB", (8, 4), (1, 2, 3))
    two.paste(GREEN, (4, 0, 8, 4))
    yield Good("rgb_clear_colour.png", encode(two, "PNG", transparency=(1, 2, 3)), (8, 4), halves(WHITE, GREEN))
    grey = Image.new("L", (8, 4), 9)
    grey.paste(100, (4, 0, 8, 4))
    yield Good("grey_clear_value.png", encode(grey, "PNG", transparency=9), (8, 4), halves(WHITE, (100,) * 3))


def _colours() -> Iterator[Good]:
    cmyk = Image.new("CMYK", (60, 30), (0, 255, 255, 0))
    cmyk.paste((255, 0, 255, 0), (30, 0, 60, 30))
    yield Good("cmyk.jpg", encode(cmyk, "JPEG", quality=95), (60, 30), halves(RED, GREEN, 12))
    yield Good("cmyk.tiff", encode(cmyk, "TIFF"), (60, 30), halves(RED, GREEN, 12))
    yield Good("bilevel.png", encode(Image.new("1", (9, 9), 1), "PNG"), (9, 9), middle(WHITE))
    yield Good("grey.jpg", encode(Image.new("L", (9, 9), 77), "JPEG"), (9, 9), middle((77,) * 3, 2))


def _deep() -> Iterator[Good]:
    # 16 bits: 0x4000 of 0xffff is 64 of 255; clipping would make it white.
    array = np.full((4, 8), 0x4000, np.uint16)
    array[:, 4:] = 0xFFFF
    grey = halves((64,) * 3, WHITE, 1)
    yield Good("grey_16.png", encode(Image.fromarray(array), "PNG"), (8, 4), grey)
    yield Good("grey_16.tiff", encode(Image.fromarray(array), "TIFF"), (8, 4), grey)
    clear = raw_png(8, 4, 16, 0, _rows(array), chunk(b"tRNS", b"\xff\xff"))
    yield Good("grey_16_clear.png", clear, (8, 4), halves((64,) * 3, WHITE, 1))
    dark = raw_png(8, 4, 16, 0, _rows(array), chunk(b"tRNS", b"\x40\0"))
    yield Good("grey_16_dark_clear.png", dark, (8, 4), halves(WHITE, WHITE))
    colour = np.zeros((4, 8, 3), np.uint16)
    colour[:, :4], colour[:, 4:] = (0xFFFF, 0, 0), (0, 0x8080, 0)
    yield Good("rgb_16.png", raw_png(8, 4, 16, 2, _rows(colour)), (8, 4), halves(RED, (0, 128, 0), 1))
    yield Good("float.tiff", encode(Image.fromarray(array.astype(np.float32) / 0xFFFF), "TIFF"), (8, 4), grey)


def _animated() -> Iterator[Good]:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    more = {"save_all": True, "append_images": frames[1:]}
    for kind, options in (("GIF", {"duration": 100}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})):
        yield Good(f"animated.{kind.lower()}", encode(frames[0], kind, **more, **options), (16, 16), middle(RED, 2))


def bad() -> Iterator[Bad]:
    """Every file that must be refused."""
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    jpeg, png = encode(noise, "JPEG", quality=90), encode(noise, "PNG")
    yield Bad("half.jpg", jpeg[: len(jpeg) // 2], ("JPEG", "cut-off"))
    yield Bad("half.png", png[: len(png) // 2], ("PNG", "cut-off"))
    yield Bad("half.webp", encode(noise, "WEBP")[:800], ("WebP", "cut-off"))
    yield Bad("half.gif", encode(noise, "GIF")[:2000], ("GIF", "cut-off"))
    at = png.find(b"IDAT") + 40
    yield Bad("flipped_byte.png", png[:at] + bytes([png[at] ^ 0xFF]) + png[at + 1 :], ("PNG", "damaged"))
    yield Bad("header_only.gif", b"GIF89a\0\0\0", ("GIF", "damaged"))
    yield Bad("empty.png", b"", ("empty",))
    yield Bad("page.png", b"<!doctype html><title>404</title>", ("HTML",))
    yield Bad("vector.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', ("SVG",))
    yield Bad("xml.svg", b'<?xml version="1.0"?>\n<svg width="9" height="9"/>', ("SVG",))
    yield Bad("phone.png", b"\0\0\0\x20ftypheic\0\0\0\0mif1MiHEmiafheic" + b"\0" * 64, ("HEIC",))
    yield Bad("clip.gif", b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + b"\0" * 64, ("MP4",))
    yield Bad("scan.jpg", b"%PDF-1.7\n" + b"\0" * 64, ("PDF",))
    yield Bad("favicon.png", b"\0\0\1\0\1\0" + b"\0" * 64, ("ICO",))
    yield Bad("notes.jpeg", b"just a note\n" * 9, ("text",))
    yield Bad("pointer.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ("LFS",))
    yield Bad("random.png", bytes(range(1, 200)), ("unknown",))
    for width, height in ((1, 2000), (2000, 1), (1093, 5), (2601, 13)):
        thin = encode(Image.new("RGB", (width, height)), "PNG")
        yield Bad(f"thin_{width}x{height}.png", thin, (f"{width}x{height}", "200 times"))
    yield from bombs()


def bombs() -> Iterator[Bad]:
    """Small files that declare or hold far too many pixels; the refusal names the limit."""
    limit = ("100000000",)
    yield Bad("declared.png", raw_png(60000, 60000, 8, 2, b"\0" * 100), ("60000x60000", *limit))
    packer = zlib.compressobj(9)
    row = b"\0" + b"\0" * (20000 // 8)
    body = b"".join(packer.compress(row) for _ in range(20000)) + packer.flush()
    yield Bad("real.png", raw_png(20000, 20000, 1, 0, body, packed=True), ("20000x20000", *limit))
    yield Bad("canvas.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b";" * 32, limit)
    extended = b"VP8X" + struct.pack("<I", 10) + b"\0" * 4 + (16382).to_bytes(3, "little") * 2
    yield Bad("canvas.webp", b"RIFF" + struct.pack("<I", 22) + b"WEBP" + extended, limit)
    tags = [(256, 4, 50000), (257, 4, 50000), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (278, 4, 1)]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    yield Bad("huge.tiff", b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + b"\0" * 4, limit)
    bitmap = struct.pack("<IHHIIiiHHIIiiII", 99, 0, 0, 54, 40, 40000, 40000, 1, 24, 0, 0, 0, 0, 0, 0)
    yield Bad("huge.bmp", b"BM" + bitmap, limit)
    yield Bad("huge.ppm", b"P6 40000 40000 255\n" + b"\0" * 64, limit)
    frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", 65500, 65500) + b"\3\1\x22\0\2\x11\1\3\x11\1"
    yield Bad("huge.jpg", b"\xff\xd8" + frame + b"\xff\xda\0\x0c\3\1\0\2\x11\3\x11\0\x3f\0" + b"\0" * 64, limit)


def text_bomb() -> bytes:
    """A tiny picture with 50 MB of packed text: may be opened or refused, must never be unpacked whole."""
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"A" * 50_000_000))
    return raw_png(16, 16, 8, 0, (b"\0" * 17) * 16, text)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(
    width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"", packed: bool = False
) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", rows if packed else zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + extra + body + chunk(b"IEND", b"")


def _rows(array: np.ndarray[Any, Any]) -> bytes:
    return b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)


def tokens(width: int, height: int, cell: int = 28, low: int = 56 * 56, high: int = 28 * 28 * 1280) -> int:
    """Tokens of a picture by the Qwen2-VL and Qwen2.5-VL rule."""
    rows, cols = round(height / cell) * cell, round(width / cell) * cell
    if rows * cols > high:
        scale = math.sqrt(width * height / high)
        rows, cols = (max(cell, math.floor(side / scale / cell) * cell) for side in (height, width))
    elif rows * cols < low:
        scale = math.sqrt(low / (width * height))
        rows, cols = (math.ceil(side * scale / cell) * cell for side in (height, width))
    return (rows // cell) * (cols // cell)
