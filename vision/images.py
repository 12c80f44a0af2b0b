"""Pictures in: a path, bytes, a PIL image or a data URI becomes an upright RGB image, or one sentence says why not.

Limits are checked on the header, before a pixel is decoded. Nothing is fetched from a network. Thread safe.
`open_image(source)` opens one; `content_key(image)` is its identity for caches.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, TypeAlias

from PIL import Image

from mmswap.errors import ImageError, told
from mmswap.vision.data_uri import decode_data_uri, is_data_uri
from mmswap.vision.formats import HEAD_BYTES, describe
from mmswap.vision.header import check_size, open_header
from mmswap.vision.upright import to_upright_rgb

Source: TypeAlias = str | Path | bytes | bytearray | memoryview | Image.Image

DECODE_LIMIT = 100_000_000
_SCHEME = re.compile(r"\s*([a-zA-Z][a-zA-Z0-9+.-]+)://")


def open_image(source: Source, *, limit: int = DECODE_LIMIT, name: str | None = None) -> Image.Image:
    """The picture as a new upright RGB PIL image without metadata.

    Turned as its EXIF orientation says, alpha composited on white, 16 bits scaled to 8, CMYK and palettes converted;
    of an animation the first frame (of a PIL image the frame it stands at). A PIL image given is not modified.

    Args:
        source: a path, the bytes of a file, a PIL image, or a data URI.
        limit: most pixels (width x height) that may be decoded.
        name: what to call the picture in an error; by default its path or what kind of source it is.

    Raises:
        ImageError: one sentence that names the picture and what is wrong with it.
    """
    label = name or _label(source)
    try:
        if isinstance(source, Image.Image):
            return _from_pil(source, limit)
        with _open_stream(source) as stream:
            return _from_stream(stream, limit)
    except ImageError as error:
        raise ImageError(f"{label} {error}") from error.__cause__


def content_key(image: Image.Image) -> str:
    """The identity of a decoded picture: a hash of its size and all its pixels, equal for equal pictures."""
    digest = hashlib.blake2b(f"{image.mode} {image.width}x{image.height} ".encode(), digest_size=32)
    digest.update(image.tobytes())
    return digest.hexdigest()


def _label(source: Source) -> str:
    if isinstance(source, Image.Image):
        return "The PIL image"
    if not isinstance(source, (str, os.PathLike)):
        return "The image"
    text = str(source) if str(source).strip() else "The image name"
    if isinstance(source, str) and is_data_uri(source):
        return "The image in the data URI"
    shown = text if len(text) <= 200 else text[:100] + "..."
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


def _open_stream(source: Source) -> AbstractContextManager[BinaryIO]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return io.BytesIO(source)
    if isinstance(source, str) and is_data_uri(source):
        try:
            return io.BytesIO(decode_data_uri(source))
        except ValueError as error:
            raise ImageError(f"cannot be decoded: {error}.") from None
    if not isinstance(source, (str, os.PathLike)):
        raise ImageError(f"is a {type(source).__name__}: give a path, bytes, a data URI or a PIL image.")
    return _open_file(source)


def _open_file(path: str | os.PathLike[str]) -> BinaryIO:
    text = str(path)
    if not text.strip():
        raise ImageError("is empty: give the path of a picture.")
    if isinstance(path, str) and (match := _SCHEME.match(path)):
        raise ImageError(
            f"is a web or file address ({match[1].lower()}:) and is not fetched: save the picture and give its path."
        )
    try:
        # Not every name is a file: a pipe would block for ever when it is opened, a device has no end.
        mode = os.stat(text).st_mode
        if stat.S_ISDIR(mode):
            raise ImageError("is a folder, not a picture.")
        if not stat.S_ISREG(mode):
            raise ImageError("is not a regular file.")
        return open(text, "rb")
    except FileNotFoundError:
        raise ImageError("does not exist.") from None
    except PermissionError:
        raise ImageError("may not be read: permission denied.") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"cannot be opened: {getattr(error, 'strerror', None) or error}.") from None


def _from_stream(stream: BinaryIO, limit: int) -> Image.Image:
    image = open_header(stream, limit)
    try:
        image.load()  # PIL opens lazily: a cut-off or damaged file only fails here
        return to_upright_rgb(image)
    except ImageError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error, ...
        stream.seek(0)
        found = describe(stream.read(HEAD_BYTES))
        raise ImageError(f"is a damaged or cut-off {found} file ({told(error)}).") from error


def _from_pil(image: Image.Image, limit: int) -> Image.Image:
    check_size(image.size, limit)
    try:
        image.load()
        return to_upright_rgb(image)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"cannot be decoded ({told(error)}).") from error
