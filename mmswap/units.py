"""Bytes in, text out, and back. Inside mmswap sizes are `int` bytes; units exist only at the edges."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?)(iB|B)?\s*", re.IGNORECASE)
_FACTOR = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_RATE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT])B/s\s*", re.IGNORECASE)


def format_bytes(count: int) -> str:
    """`1536 -> '1.5 KiB'`: the largest unit that keeps the number at or above one, one decimal."""
    return _format(count, 1)


def _format(count: int, decimals: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.{decimals}f} {unit}"
        size /= 1024
    return f"{size:.{decimals}f} TiB"


def format_apart(*counts: int) -> tuple[str, ...]:
    """The sizes of one sentence, with as many decimals as it takes for different sizes to read differently.

    `(1_400_000, 1_360_000) -> ('1.34 MiB', '1.30 MiB')`, where one decimal would give '1.3 MiB' twice.
    """
    for decimals in range(1, 7):
        texts = tuple(_format(count, decimals) for count in counts)
        if len(set(texts)) == len(set(counts)):
            return texts
    return tuple(f"{count} B" for count in counts)


def parse_bytes(text: str) -> int:
    """`'16GiB'`, `'16G'`, `'300 MiB'` or `'4096'` in bytes; units are powers of 1024.

    Raises:
        ValueError: the text is not a size; the message says how to write one.
    """
    match = _SIZE.fullmatch(text)
    if match is None or ((match[3] or "").upper() == "B" and match[2]):
        raise ValueError(f"'{text}' is not a size: write for example 16GiB or 300MiB (units are powers of 1024).")
    return int(float(match[1]) * _FACTOR[match[2].upper()])


def parse_rate(text: str) -> int:
    """`'24GB/s'` in bytes a second; link speeds are powers of 1000, as vendors give them.

    Raises:
        ValueError: the text is not a rate; the message says how to write one.
    """
    match = _RATE.fullmatch(text)
    rate = int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper())) if match else 0
    if rate <= 0:
        raise ValueError(f"'{text}' is not a link speed: write for example 24GB/s.")
    return rate
