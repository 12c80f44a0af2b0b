"""What a file really is, told by its first bytes and never by its name. Knows no pixels.

`describe(head)` names the format for a person; `HEAD_BYTES` is how much of the file it wants to see.
"""

from __future__ import annotations

HEAD_BYTES = 512

# Offset, magic bytes, name. Order matters only where one magic is the beginning of another.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (8, b"WEBP", "WebP"),
    (8, b"AVI ", "AVI video"),
    (8, b"WAVE", "WAV audio"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"BM", "BMP"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"PK\3\4", "ZIP archive"),
    (0, b"\x1f\x8b", "gzip archive"),
    (0, b"\x1aE\xdf\xa3", "Matroska video"),
    (0, b"ID3", "MP3 audio"),
    (0, b"\x7fELF", "program"),
    (0, b"MZ", "program"),
)
_BRANDS = {
    b"heic": "HEIC", b"heix": "HEIC", b"hevc": "HEIC", b"hevx": "HEIC", b"heim": "HEIC", b"heis": "HEIC",
    b"mif1": "HEIF", b"msf1": "HEIF", b"avif": "AVIF", b"avis": "AVIF", b"qt  ": "QuickTime video",
}  # fmt: skip


def describe(head: bytes) -> str:
    """The real format of a file that begins with `head`: `PNG`, `HEIC`, `an HTML page`, `text`, `unknown data`."""
    if not head:
        return "empty (0 bytes)"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "MP4 video")
    for offset, magic, name in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or head.startswith(b"RIFF")):
            return name
    return _describe_text(head)


def _describe_text(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in text:
        return "SVG"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if text.startswith(b"<?xml"):
        return "XML"
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer"
    if all(byte >= 32 or byte in b"\t\r\n" for byte in head) and b"\x7f" not in head:
        return "text"
    return "unknown data"
