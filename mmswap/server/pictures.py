"""The pictures of a request: data URIs, and web addresses where they are allowed; never a file. Knows no messages.

picture = open_picture(url, detail="low", limit=100_000_000, fetch=None)
"""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image

from mmswap.errors import ImageError
from mmswap.server.refusal import Refusal
from mmswap.vision.data_uri import decode_data_uri, is_data_uri
from mmswap.vision.images import open_image

Fetch = Callable[[str], bytes]
LOW = 512  # pixels of each side that `detail: low` leaves


def open_picture(url: str, *, name: str, detail: str | None, limit: int, fetch: Fetch | None) -> Image.Image:
    """The decoded picture behind an `image_url`.

    Args:
        name: what to call it in an error. limit: pixels that may be decoded.
        fetch: gets web addresses; None: they are refused.

    Raises:
        ImageError: it is no picture, or not a good one. Refusal: the address may not be asked.
    """
    picture = open_image(_bytes_of(url, name, fetch), limit=limit, name=name)
    if detail == "low" and max(picture.size) > LOW:
        picture.thumbnail((LOW, LOW), Image.Resampling.BICUBIC)
    return picture


def _bytes_of(url: str, name: str, fetch: Fetch | None) -> bytes:
    if is_data_uri(url):
        try:
            return decode_data_uri(url)
        except ValueError as error:
            raise ImageError(f"{name} cannot be decoded: {error}.") from None
    if url.strip()[:8].lower().startswith(("http://", "https://")):
        if fetch is not None:
            return fetch(url.strip())
        raise Refusal(
            400,
            f"{name} is a web address, and this server fetches none (--allow-image-urls): send it as a data URI.",
            code="image_url_not_allowed",
        )
    raise Refusal(
        400, f"{name} must be a data URI (data:image/png;base64,...), and it is none.", code="invalid_image_url"
    )
