"""A bar of the card: how many cells each group gets, its letter and its colour. Knows no terminal and no model.

cells({"weights": 12, "free": 4}, 32) -> {"weights": 24, "free": 8}
"""

from __future__ import annotations

from collections.abc import Mapping

LETTERS = {
    "vision tower": "v",
    "projector": "p",
    "embeddings": "e",
    "decoder layers": "L",
    "output head": "h",
    "norms": "n",
    "other weights": "o",
    "KV cache": "K",
    "encoder in lent bytes": "@",
    "encoder": "#",
    "features": "f",
    "prefill step": "s",
    "free": ".",
}
HELD = "x"  # what is not to be had: desktop, other processes, limits

COLOURS = {
    "vision tower": "#7b5ea7",
    "projector": "#a98bd0",
    "embeddings": "#2f5d8a",
    "decoder layers": "#3f7fbf",
    "output head": "#6aa5db",
    "norms": "#9cc4e8",
    "other weights": "#b7c9d9",
    "KV cache": "#3a9a78",
    "encoder in lent bytes": "#c8622b",
    "encoder": "#e08a2e",
    "features": "#f0b56b",
    "prefill step": "#e6c229",
    "free": "#e9ecef",
}
HELD_COLOUR = "#8a8f98"


def colour(name: str) -> str:
    """Of a group; what others hold is grey."""
    return COLOURS.get(name, HELD_COLOUR)


def letter(name: str) -> str:
    """Of a group, where there are no colours."""
    return LETTERS.get(name, HELD)


def cells(sizes: Mapping[str, int], width: int) -> dict[str, int]:
    """Cells of each group in a bar of `width`: what is there gets one at the least, and all of them add up to `width`.

    A negative size gets none: the bar is then that of what is too much for the card.
    """
    there = {name: size for name, size in sizes.items() if size > 0}
    if not there or width < len(there):
        return dict.fromkeys(there, 0) | ({max(there, key=lambda name: there[name]): width} if there else {})
    total = sum(there.values())
    shares = {name: max(1, size * width // total) for name, size in there.items()}
    while (left := width - sum(shares.values())) != 0:
        sign = 1 if left > 0 else -1
        able = [name for name in there if sign > 0 or shares[name] > 1]
        furthest = max(able, key=lambda name: sign * (there[name] * width - shares[name] * total))
        shares[furthest] += sign
    return shares
