"""Data URIs as real clients write them, and texts that only look like one."""

from __future__ import annotations

import base64
import urllib.parse

import numpy as np
import pictures
import pytest
from PIL import Image

from mmswap.errors import ImageError
from mmswap.vision.data_uri import decode_data_uri, is_data_uri
from mmswap.vision.images import content_key, open_image


def sample(kind: str) -> bytes:
    array = np.random.default_rng(5).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    data = pictures.encode(Image.fromarray(array), kind)
    while not ({"+", "/"} <= set(base64.b64encode(data).decode()) and len(data) % 3):
        data += b"\0"
    return data


PNG, JPEG = sample("PNG"), sample("JPEG")
TEXT, JPEG_TEXT = base64.b64encode(PNG).decode(), base64.b64encode(JPEG).decode()
HEAD = "data:image/png;base64,"
PNG_SPELLINGS = {
    "plain": HEAD + TEXT,
    "space after comma": HEAD + " " + TEXT,
    "space before": "  " + HEAD + TEXT + "\n",
    "wrapped": HEAD + "\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)),
    "wrapped crlf": HEAD + "\r\n".join(TEXT[i : i + 64] for i in range(0, len(TEXT), 64)) + "\r\n",
    "tabs": HEAD + TEXT[:40] + "\t" + TEXT[40:],
    "spaces inside": HEAD + TEXT[:41] + " " + TEXT[41:],
    "unpadded": HEAD + TEXT.rstrip("="),
    "url safe": HEAD + TEXT.replace("+", "-").replace("/", "_"),
    "percent encoded": HEAD + urllib.parse.quote(TEXT, safe=""),
    "upper case": "DATA:IMAGE/PNG;BASE64," + TEXT,
    "charset": "data:image/png;charset=utf-8;base64," + TEXT,
    "name": "data:image/png;name=a.png;base64," + TEXT,
    "no mime": "data:;base64," + TEXT,
    "octet stream": "data:application/octet-stream;base64," + TEXT,
    "not base64": "data:image/png," + urllib.parse.quote(PNG, safe=""),
}
JPEG_SPELLINGS = {"jpg alias": "data:image/jpg;base64," + JPEG_TEXT, "jpeg labelled png": HEAD + JPEG_TEXT}


@pytest.mark.parametrize("name", PNG_SPELLINGS)
def test_good_spellings_give_the_same_bytes(name: str) -> None:
    assert decode_data_uri(PNG_SPELLINGS[name]) == PNG
    assert content_key(open_image(PNG_SPELLINGS[name])) == content_key(open_image(PNG))


@pytest.mark.parametrize("name", JPEG_SPELLINGS)
def test_the_content_decides_and_not_the_label(name: str) -> None:
    assert content_key(open_image(JPEG_SPELLINGS[name])) == content_key(open_image(JPEG))


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        (HEAD, "holds no data"),
        (HEAD + "  \n", "holds no data"),
        ("data:image/png;base64" + TEXT.replace("/", "A"), "no comma"),
        (HEAD + "!!!not base64!!!", "not base64"),
        (HEAD + "A", "cut off"),
        (HEAD + TEXT[:8] + "=" + TEXT[8:], "not base64"),
        (HEAD + "é" + TEXT, "not ASCII"),
        (HEAD + "\ud800" + TEXT, "not ASCII"),
        (HEAD + "\0" + TEXT, "not base64"),
        ("data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'/%3E", "SVG"),
        ("data:text/plain;base64,aGVsbG8=", "is text"),
    ],
)
def test_bad_ones_are_refused_with_a_reason(uri: str, reason: str) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        open_image(uri)
    assert str(caught.value).startswith("The image in the data URI")
    assert TEXT[:30] not in str(caught.value)


@pytest.mark.parametrize("text", ["Explain: <img src='data:image/png;base64,XXXX'>", TEXT, "database.png", ""])
def test_a_text_that_only_mentions_one_is_not_one(text: str) -> None:
    assert not is_data_uri(text)
    with pytest.raises(ImageError) as caught:
        open_image(text)
    assert len(str(caught.value)) < 300
