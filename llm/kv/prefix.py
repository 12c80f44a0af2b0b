"""What two prompts share, and what is kept of one so that the next need not be read whole.

    key = chat_key(ids, placeholder, [(picture_hash(image), tokens), ...])     # None: whose token is whose is not known
    shared = kept.serves(key)                                                  # tokens that need not be read again

Placeholders of all pictures look alike, so a picture's hash stands in the key in their place: two pictures never share
what stands behind them. A prompt is never cut inside of a picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmswap.llm.kv.cache import KvCache

Unit = int | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Key:
    """A prompt, token by token.

    Attributes:
        units: an id, or in a picture's placeholder (hash, number of the placeholder within the picture).
        pictures: where each picture begins and ends: its first placeholder, and what stands behind its last one.
    """

    units: tuple[Unit, ...]
    pictures: tuple[tuple[int, int], ...] = ()

    def shared(self, other: Key) -> int:
        """Tokens at the beginning that both have in common, no picture cut."""
        count = 0
        for one, another in zip(self.units, other.units):
            if one != another:
                break
            count += 1
        for start, end in (*self.pictures, *other.pictures):
            if start < count < end:
                count = start
        return count

    def followed(self, ids: Sequence[int]) -> Key:
        """With the tokens of an answer behind it."""
        return Key((*self.units, *ids), self.pictures)

    def first(self, tokens: int) -> Key:
        """The beginning alone."""
        return Key(self.units[:tokens], tuple(span for span in self.pictures if span[0] < tokens))


@dataclass(slots=True)
class Kept:
    """What an answered prompt leaves: its tokens, their keys and values, and what the model notes of its positions.

    Attributes:
        key: of the tokens that the cache has seen, the answer's among them.
        state: the request's (`RequestState`), with the position shift that its pictures caused.
    """

    key: Key
    cache: KvCache
    state: Any

    def serves(self, key: Key) -> int:
        """Tokens of a prompt that need not be read again; 0 where it must be read whole.

        The last token is always read, for the answer begins with its logits. What is read may hold no picture, and a
        recurrent state or a window that has wrapped serves whole or not at all.
        """
        shared = min(self.key.shared(key), len(key.units) - 1, self.cache.tokens)
        for start, end in key.pictures:
            if start < shared < end:
                shared = start
        if any(end > shared for _, end in key.pictures):
            return 0
        if len(self.key.pictures) != len(key.pictures):  # its positions are shifted by pictures that are not there
            return 0
        return shared if shared > 0 and self.cache.keepable(shared) else 0


def chat_key(ids: Sequence[int], placeholder: int | None, pictures: Sequence[tuple[str, int]]) -> Key | None:
    """The key of a prompt; None where the placeholders do not add up.

    Args:
        placeholder: the id that stands for pictures. pictures: (hash, placeholders) of each, in order.
    """
    places = [index for index, token in enumerate(ids) if token == placeholder] if pictures else []
    if len(places) != sum(count for _, count in pictures) or any(count < 1 for _, count in pictures):
        return None
    units: list[Unit] = list(ids)
    spans = []
    first = 0
    for name, count in pictures:
        own = places[first : first + count]
        for number, place in enumerate(own):
            units[place] = (name, number)
        spans.append((own[0], own[-1] + 1))
        first += count
    return Key(tuple(units), tuple(spans))


def picture_hash(image: Any) -> str:
    """SHA-256 of a decoded picture: its size, its kind, and every byte."""
    digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height} ".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def within_pictures(reach: Tensor | None, pictures: Sequence[tuple[int, int]]) -> bool:
    """Whether tokens look ahead only within their own picture, if at all.

    Args:
        reach: for each token the furthest one that any token up to it looks at; None: nobody looks ahead.
    """
    if reach is None:
        return True
    inside = {place: end for start, end in pictures for place in range(start, end)}
    return all(furthest <= index or furthest < inside.get(index, 0) for index, furthest in enumerate(reach.tolist()))
