"""Bytes of a KV cache of any length and kind, from the shapes of one token's keys and values. Pure ints.

    layout = KvLayout((KvRow(heads=4, width=128, count=28),))     # 28 layers
    layout.nbytes(32768, kv_kind("fp16"))

As `KvCache` takes them: slots in whole blocks, windows whole or as long as the rest, an 8-bit kind's constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.llm.kv.kinds import KINDS, Kind, blocks

_PLAIN = {kind.nbytes: kind for kind in (KINDS["fp32"], KINDS["fp16"])}


@dataclass(frozen=True, slots=True)
class KvRow:
    """Layers that keep the same.

    Attributes:
        heads, width: each token adds `heads` keys of `width` elements and as many values. count: of layers.
        window: most tokens that are kept (sliding attention); None keeps all.
        values: elements of a value where they are not as many as a key's.
        element: bytes of each, in a layer that is transformers' own and keeps what the model computes; None: ours.
    """

    heads: int
    width: int
    count: int
    window: int | None = None
    values: int | None = None
    element: int | None = None

    def slots(self, tokens: int) -> int:
        """For `tokens` tokens."""
        held = tokens if self.element is not None else blocks(tokens)
        return held if self.window is None else min(held, self.window)

    def token(self, kind: Kind) -> int:
        """Bytes of one token in all of these layers."""
        return self.count * self._kind(kind).bytes_per_token(self.heads, self.width, self.values)

    def nbytes(self, tokens: int, kind: Kind) -> int:
        constants = self.count * self._kind(kind).overhead_bytes(self.heads, self.width)
        return self.slots(tokens) * self.token(kind) + constants

    def _kind(self, kind: Kind) -> Kind:
        return kind if self.element is None else _PLAIN[self.element]


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A whole cache: layers that grow, and `states`, bytes of what does not: recurrent states, the keys of pictures."""

    rows: tuple[KvRow, ...]
    states: int = 0

    def nbytes(self, tokens: int, kind: Kind) -> int:
        """Bytes for a text of `tokens`; 0 for none."""
        if tokens <= 0:
            return 0
        return self.states + sum(row.nbytes(tokens, kind) for row in self.rows)

    @property
    def ours(self) -> bool:
        """Some of it is kept in a kind that can be chosen."""
        return any(row.element is None for row in self.rows)

    def per_token(self, kind: Kind) -> int:
        """Bytes that a token adds while no window is full; they are taken a block at a time."""
        return sum(row.token(kind) for row in self.rows)

    def sentence(self) -> str:
        """What the cache is made of."""
        parts = [_row(row) for row in self.rows]
        if self.states:
            parts.append("states that do not grow")
        return "; ".join(parts) or "nothing"


def _row(row: KvRow) -> str:
    what = f"{row.count} layers of {row.heads} x {row.width}"
    return what if row.window is None else f"{what} for the last {row.window} tokens"
