"""How each kernel is cut, by family of card: the table, and the choice for a shape. Imports no Triton.

    choose("w4_gemv", card, (outputs, padded, group))      # what tuning found for that shape, else the first

A row of the table lists few, sensible configurations. `tuning.py` measures them at load and fills `tuned`; a shape that
was not tuned takes the first. `benchmarks/isa.csv` shows what each compiles to. None was timed on a card.
"""

from __future__ import annotations

from typing import NamedTuple

from mmswap.llm.ops.triton.arch import INTERPRETER, Card

Shape = tuple[int, ...]


class Config(NamedTuple):
    """What one program takes.

    Attributes:
        rows: weight rows (for `decode_attention`: query heads of one key head).
        columns: words of a row at a time (`gemv`: pairs of numbers; `decode_attention`: slots, of heads of 128
            channels).
        warps: warps of the program.
        inputs: input rows (`w4_small`); 16: by the matrix units (`w4_dot`).
    """

    rows: int
    columns: int
    warps: int
    inputs: int = 1


_GEMV = (Config(8, 128, 4), Config(4, 128, 2), Config(4, 256, 4), Config(2, 128, 1))
_SMALL = (Config(8, 128, 4, 4), Config(4, 128, 4, 4), Config(8, 128, 4, 2), Config(4, 128, 4, 8))
_DOT = (Config(32, 16, 2, 16), Config(64, 16, 4, 16), Config(16, 16, 1, 16), Config(8, 128, 4, 4))
_SKINNY = (Config(8, 256, 4), Config(4, 256, 4), Config(4, 512, 4), Config(2, 256, 1))
_UNPACK = (Config(4, 128, 4), Config(8, 128, 4))
_ATTENTION = (Config(4, 8, 4), Config(2, 16, 4), Config(1, 32, 4), Config(4, 16, 8))
_LANES32 = {
    "w4_gemv": _GEMV,
    "w4_small": _SMALL,
    "w4_dot": _DOT,
    "expert_gemv": _GEMV,
    "gemv": _SKINNY,
    "dequantise": _UNPACK,
    "decode_attention": _ATTENTION,
}
_LANES64: dict[str, tuple[Config, ...]] = {
    "w4_gemv": (Config(8, 256, 4), Config(4, 256, 4)),
    "w4_small": (Config(4, 256, 4, 4),),
    "w4_dot": (Config(32, 16, 2, 16), Config(4, 256, 4, 4)),
    "expert_gemv": (Config(8, 256, 4), Config(4, 256, 4)),
    "gemv": (Config(8, 512, 4), Config(4, 512, 4)),
    "dequantise": (Config(4, 256, 4),),
    "decode_attention": (Config(4, 16, 4), Config(2, 16, 4)),
}
_LARGE: dict[str, tuple[Config, ...]] = {
    "w4_gemv": (Config(64, 32, 1),),
    "w4_small": (Config(64, 32, 1, 4),),
    "w4_dot": (Config(64, 16, 1, 16),),
    "expert_gemv": (Config(64, 32, 1),),
    "gemv": (Config(64, 128, 1),),
    "dequantise": (Config(64, 128, 1),),
    "decode_attention": (Config(4, 8, 1),),
}
"""For the interpreter, whose time goes by programs."""

TABLE: dict[str, dict[str, tuple[Config, ...]]] = {
    "rdna3": _LANES32,
    "rdna4": _LANES32,
    "cuda": _LANES32,
    "cdna": _LANES64,
    INTERPRETER: _LARGE,
}
"""Family of cards -> kernel -> configurations, the default first."""

DOT_ABOVE = {"rdna3": 8, "rdna4": 4, "cuda": 2, "cdna": 4, INTERPRETER: 4}
"""Family -> input rows above which the matrix units take fewer instructions than products of pairs."""

tuned: dict[tuple[str, Shape], Config] = {}
"""(kernel, shape) -> what was fastest on the card of this process."""


asked: list[tuple[str, Shape, int]] | None = None
"""While `tuning.py` listens: what `choose` was asked, and how many configurations there are."""


def choose(kernel: str, card: Card, shape: Shape) -> Config:
    """The configuration for a shape, without measuring anything."""
    row = TABLE[card.family][kernel]
    if asked is not None:
        asked.append((kernel, shape, len(row)))
    return tuned.get((kernel, shape)) or row[0]
