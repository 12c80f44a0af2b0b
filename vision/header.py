"""Open a picture's header without decoding a pixel, so that limits come first. Knows no orientation and no colours.

`open_header(stream, limit)` gives a lazy PIL image of an allowed format whose size has been checked, or an ImageError
whose text is the second half of a sentence: the caller puts the picture's name in front.
"""

from __future__ import annotations

from typing import BinaryIO

from PIL import Image

from mmswap.errors import ImageError
from mmswap.vision.formats import HEAD_BYTES, describe

# What may be decoded. Others that PIL knows (PostScript runs a program, ICO hides a picture inside) are refused.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
FRIENDLY = "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, JPEG 2000 or PPM"
MAX_RATIO = 200


def open_header(stream: BinaryIO, limit: int) -> Image.Image:
    """A PIL image whose header was read and whose size is allowed; its pixels are not decoded yet.

    Args:
        stream: seekable, at its start; stays open as long as the image is used.
        limit: most pixels (width x height) that may be decoded.

    Raises:
        ImageError: not a picture, not an allowed format, damaged, or over a limit.
    """
    head = stream.read(HEAD_BYTES)
    if not head:
        raise ImageError("is empty (0 bytes).")
    found = describe(head)
    if found in _SIZE_IN_HEAD and len(head) >= 30:
        check_size(_SIZE_IN_HEAD[found](head), limit)
    image = _open(stream, head, found)
    check_size(image.size, limit)
    return image


def check_size(size: tuple[int, int], limit: int) -> None:
    """Refuse a size (width, height) before anything is decoded.

    Raises:
        ImageError: no pixels, more pixels than `limit`, or a side more than 200 times the other.
    """
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"is {width}x{height}: it has no pixels.")
    if width * height > limit:
        raise ImageError(f"is {width}x{height} = {width * height} pixels; the limit is {limit} pixels.")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError(
            f"is {width}x{height}: one side is {max(width, height) / min(width, height):.1f} times the other; "
            f"the limit is {MAX_RATIO} times."
        )


def _open(stream: BinaryIO, head: bytes, found: str) -> Image.Image:
    # PIL.Image.open is not used: it guards against bombs with a process-wide limit and warnings, and it tries every
    # format that it knows. The factories behind it read the header only.
    Image.init()
    for name in FORMATS:
        factory, accept = Image.OPEN.get(name, (None, None))
        accepted = factory is not None and (accept is None or accept(head[:16]))
        if isinstance(accepted, str):  # the plugin knows the format, but its decoder was not built in
            raise ImageError(f"is {found}, which this installation of Pillow cannot decode.")
        if not accepted:
            continue
        stream.seek(0)
        try:
            return factory(stream, "")
        except Exception as error:  # plugins raise SyntaxError, struct.error, IndexError, ... on damaged headers
            raise ImageError(f"is a damaged or cut-off {found} file.") from error
    raise ImageError(f"is {found}, not a picture that can be read ({FRIENDLY}).")


def _gif_size(head: bytes) -> tuple[int, int]:
    return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")


def _webp_size(head: bytes) -> tuple[int, int]:
    """Canvas size from the first chunk of a WebP file (developers.google.com/speed/webp/docs/riff_container)."""
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


# Formats whose PIL plugin allocates the canvas, or wants a whole frame, before it tells the size.
_SIZE_IN_HEAD = {"GIF": _gif_size, "WebP": _webp_size}
