"""Cards by name: what their vendors' pages say of capacity, bandwidth and PCIe. Knows no driver; asks no device.

    known_card("rx7900xt") -> KnownCard(name="RX 7900 XT", total=20 GiB, bandwidth=800e9, link_rate=23.9e9, ...)

The figures are in `known.json` beside this file, with their sources. Spelling is forgiven; guessing is not done.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mmswap.errors import OptionError
from mmswap.units import GIB

_NOISE = re.compile(
    r"\b(amd|nvidia|geforce|radeon|instinct|tesla|graphics|gpu|rx|rtx|gtx|pro|ai|generation|edition|pcie|sxm\d?|hbm\d?e?)\b"
)
_MARKS = re.compile(r"[™®©]|\((?:tm|r|c)\)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*g(?:i?b)?\b")
_GLUED = re.compile(r"(?<![a-z])(rx|rtx|gtx|radeon|geforce)(?=\d|[wa]\d)")


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card as its vendor describes it.

    Attributes:
        total: bytes. bandwidth: bytes a second of its memory. link_rate: bytes a second from the host, in practice.
        link: the same in words. source: where the figures are from. shared: it has no memory of its own.
    """

    name: str
    vendor: str
    architecture: str
    total: int
    bandwidth: int
    link_rate: int
    link: str
    source: str
    shared: bool = False


def known_card(name: str) -> KnownCard:
    """The one card that `name` means: "RX 7900 XT", "7900xt", "rtx4090", "NVIDIA GeForce RTX 3060 12GB".

    Raises:
        OptionError: no card, or more than one, has that name; the sentence gives the nearest ones.
    """
    bare, size = _split(name)
    named = [card for card in known_cards() if bare and bare in _keys(card)]
    found = [card for card in named if size is None or card.total == size * GIB]
    if len(found) > 1:  # one without its size in the name is the plain one of that name
        found = [card for card in found if not _SIZE.search(card.name.lower())] or found
    if len(found) == 1:
        return found[0]
    near = [card.name for card in found or named] or _nearest(bare)
    what = f"'{name}' is more than one card" if found else f"'{name}' is no card that is known by name"
    raise OptionError(f"{what}: use {_either(near)}, or give its size as sim:16GiB@24GB/s.")


@cache
def known_cards() -> tuple[KnownCard, ...]:
    """All of them, in the order of the data file."""
    data = _data()
    return tuple(_card(row, data) for row in data["cards"])


@cache
def _data() -> Any:
    return json.loads((files("mmswap.card") / "known.json").read_text(encoding="utf-8"))


def _card(row: dict[str, Any], data: dict[str, Any]) -> KnownCard:
    share, shared = data["practical"], row["pcie"] is None
    if shared:
        line, link = row["gb_per_s"] / 2, f"shared memory of {row['gb_per_s']} GB/s"
    else:
        generation, lanes = row["pcie"]
        line, link = data["lane_gb_per_s"][str(generation)] * lanes, f"PCIe {generation}.0 x{lanes}"
    rate = round(line * share * 1e9)
    sources = data["sources"]
    return KnownCard(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        total=row["gib"] * GIB,
        bandwidth=round(row["gb_per_s"] * 1e9),
        link_rate=rate,
        link=f"{link}, {share:.0%} of which a copy reaches: {rate / 1e9:.1f} GB/s",
        source=sources.get(row["name"], sources[row["vendor"]]),
        shared=shared,
    )


def _keys(card: KnownCard) -> set[str]:
    aliases = next(row.get("aliases", ()) for row in _data()["cards"] if row["name"] == card.name)
    return {_split(name)[0] for name in (card.name, *aliases)}


def _split(name: str) -> tuple[str, int | None]:
    """What distinguishes a name, in small letters without blanks, and the GiB that it gives."""
    plain = unicodedata.normalize("NFKC", _MARKS.sub(" ", name)).lower()
    text = _GLUED.sub(r"\1 ", plain.replace("-", " ").replace("_", " "))
    size = _SIZE.search(text)
    text = _NOISE.sub(" ", _SIZE.sub(" ", text))
    return re.sub(r"[^a-z0-9+]", "", text), int(size[1]) if size else None


def _nearest(bare: str) -> list[str]:
    keys = {key: card.name for card in known_cards() for key in _keys(card)}
    close = difflib.get_close_matches(bare, keys, n=3, cutoff=0.5)
    same = [key for key in keys if bare and (key.startswith(bare) or bare.startswith(key))]
    return list(dict.fromkeys(keys[key] for key in [*same, *close]))[:4] or ["RX 7900 XT", "RTX 4090"]


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
