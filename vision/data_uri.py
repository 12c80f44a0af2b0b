"""A data URI (RFC 2397) to bytes, in the spellings that real clients send. Knows nothing of pictures or files.

`is_data_uri(text)` asks whether a text IS one (one that merely mentions it is not); `decode_data_uri(text)` decodes.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

# Wrapped lines and stray blanks are dropped; a blank is never read as '+', which would silently change the picture.
_BLANKS = b" \t\r\n\f\v"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def is_data_uri(text: str) -> bool:
    """Whether the text starts as a data URI does (upper case and leading blanks allowed)."""
    return text[:64].lstrip()[:5].lower() == "data:"


def decode_data_uri(text: str) -> bytes:
    """The bytes inside a data URI; MIME type and parameters are ignored, since pictures are told by their content.

    Accepts missing padding, wrapped lines, blanks, the URL-safe alphabet, percent encoding, and parameters.

    Raises:
        ValueError: it cannot be decoded; the message is the reason and never repeats the payload.
    """
    head, comma, payload = text.strip().partition(",")
    if not is_data_uri(head):
        raise ValueError("it does not start with 'data:'")
    if not comma:
        raise ValueError("it has no comma between its header and its data")
    try:
        raw = payload.encode("ascii")
    except UnicodeEncodeError:
        raise ValueError("its data holds characters that are not ASCII") from None
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    parameters = {part.strip().lower() for part in head.split(";")[1:]}
    data = _from_base64(raw) if "base64" in parameters else raw
    if not data:
        raise ValueError("it holds no data")
    return data


def _from_base64(raw: bytes) -> bytes:
    text = raw.translate(_URL_SAFE, delete=_BLANKS).rstrip(b"=")
    if len(text) % 4 == 1:
        raise ValueError("its base64 data is cut off")
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError("its data is not base64") from None
