"""Bytes of a KV cache: shapes of one token's keys and values in, bytes at any length and in any format out. Pure ints.

layout = KvLayout((KvRow(heads=4, width=128, count=56),))     # 28 layers of keys and values
layout.nbytes(32768, KV_FORMATS["fp16"])
"""

from __future__ import annotations

from dataclasses import dataclass

from mmswap.sizing.packing import GROUP


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How an element of the cache is kept: `bits` of each, and `group_bits` of scales for every group of `GROUP`.

    A group never spans two heads or two tokens: a head of 96 has one, a head of 256 has two.
    """

    name: str
    bits: int
    group_bits: int = 0

    def row_bits(self, width: int) -> int:
        """Bits of one head's vector of `width` elements."""
        return width * self.bits + -(-width // GROUP) * self.group_bits


KV_FORMATS = {
    "fp32": KvFormat("fp32", 32),
    "fp16": KvFormat("fp16", 16),
    "bf16": KvFormat("bf16", 16),
    "fp8": KvFormat("fp8", 8),  # its scales are a layer's constants
    "int8": KvFormat("int8", 8, 16),
    "int4": KvFormat("int4", 4, 20),  # a scale of 16 bits and a zero of 4
}


@dataclass(frozen=True, slots=True)
class KvRow:
    """Tensors of one shape in the cache.

    Attributes:
        heads, width: each token adds `heads` vectors of `width` elements to each of these tensors.
        count: how many such tensors there are: keys and values of all layers alike.
        window: most tokens that are kept (sliding attention); None keeps all.
        fixed: tokens of a tensor that does not grow with the text (keys of a picture that cross attention looks at).
    """

    heads: int
    width: int
    count: int
    window: int | None = None
    fixed: int | None = None

    def tokens(self, tokens: int) -> int:
        """How many of `tokens` are kept."""
        if self.fixed is not None:
            return self.fixed
        return tokens if self.window is None else min(tokens, self.window)

    def bits(self, kv: KvFormat) -> int:
        """Of one token in all of these tensors."""
        return self.heads * self.count * kv.row_bits(self.width)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A whole cache: what grows, and `states`, bytes of recurrent states that stay in their own type."""

    rows: tuple[KvRow, ...]
    states: int = 0

    def nbytes(self, tokens: int, kv: KvFormat) -> int:
        """Bytes for a text of `tokens`; 0 for none."""
        if tokens <= 0:
            return 0
        return self.states + -(-sum(row.tokens(tokens) * row.bits(kv) for row in self.rows) // 8)

    def per_token(self, kv: KvFormat) -> int:
        """Bytes that a token adds while no window is full."""
        return -(-sum(row.bits(kv) for row in self.rows if row.fixed is None) // 8)

    def passing(self, chunk: int, tokens: int, kv: KvFormat) -> int:
        """Bytes above `nbytes` in a step of `chunk` tokens: sliding layers hold the step beside their window."""
        sliding = [row for row in self.rows if row.window is not None and row.fixed is None]
        over = sum(
            (min(tokens, row.window + chunk) - row.tokens(tokens)) * row.bits(kv) for row in sliding if row.window
        )
        return -(-over // 8)

    def sentence(self) -> str:
        """What the cache is made of."""
        parts = [_row(row) for row in self.rows]
        if self.states:
            parts.append("recurrent states that do not grow")
        return "; ".join(parts) or "nothing"


def _row(row: KvRow) -> str:
    what = f"{row.count} tensors of {row.heads} x {row.width}"
    if row.fixed is not None:
        return f"{what} for the {row.fixed} tokens of the pictures"
    return what if row.window is None else f"{what} for the last {row.window} tokens"
