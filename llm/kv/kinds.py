"""How a KV cache keeps its numbers, and the bytes that follow. Pure ints: imports no torch before it is needed.

    kind = kv_kind("int8");  kind.bytes_per_token(heads=4, head_dim=128)

An 8-bit kind has constants beside its tokens: an offset and a scale for each channel of the keys, in float32. Values
have a scale too: one for each token and head (int8), or one for each head (fp8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmswap.config import KV_KINDS
from mmswap.errors import OptionError

BLOCK, SMALLEST_BLOCK = 256, 16  # tokens by which a long cache grows, and a very short one
_FLOAT = 4  # bytes of an offset or a scale


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to keep keys and values.

    Attributes:
        name: as in `--kv`. element: the torch dtype's name. nbytes: of one element.
        quantised: there are scales, and what is read differs from what was stored.
        scaled_tokens: values have a scale for each token.
        largest: the largest number that an element holds; 0 where it does not matter.
        headroom: by how much the first scale leaves room above what was seen; a float loses nothing by it.
    """

    name: str
    element: str
    nbytes: int
    quantised: bool = False
    scaled_tokens: bool = False
    largest: float = 0.0
    headroom: float = 1.0

    @property
    def dtype(self) -> Any:
        """Of the store."""
        import torch

        return getattr(torch, self.element)

    @property
    def float8(self) -> bool:
        return self.element.startswith("float8")

    def bytes_per_token(self, heads: int, head_dim: int, value_dim: int | None = None) -> int:
        """Bytes of one token's keys and values in one layer of `heads` key heads."""
        scales = _FLOAT if self.scaled_tokens else 0
        return heads * ((head_dim + (head_dim if value_dim is None else value_dim)) * self.nbytes + scales)

    def overhead_bytes(self, heads: int, head_dim: int) -> int:
        """Bytes of one layer's constants, whatever the number of tokens."""
        if not self.quantised:
            return 0
        return heads * (2 * head_dim + (0 if self.scaled_tokens else 1)) * _FLOAT


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fp32", "float32", 4),
        Kind("fp16", "float16", 2),
        Kind("bf16", "bfloat16", 2),
        Kind("int8", "int8", 1, quantised=True, scaled_tokens=True, largest=127.0, headroom=1.125),
        Kind("fp8_e4m3", "float8_e4m3fn", 1, quantised=True, largest=448.0, headroom=8.0),
        Kind("fp8_e5m2", "float8_e5m2", 1, quantised=True, largest=57344.0, headroom=64.0),
    )
}
_ALSO = {"fp8": "fp8_e4m3"}
_LIKE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def kv_kind(name: str, dtype: Any = None) -> Kind:
    """The kind of that name; `auto` keeps what a model of `dtype` (a torch dtype or its name) computes; `fp8` is e4m3.

    Raises:
        OptionError: there is no such kind.
    """
    if name == "auto":
        own = str(dtype).removeprefix("torch.")
        return KINDS[_LIKE.get(own, "fp16")]
    if name not in KV_KINDS:
        raise OptionError(f"--kv {name} is not known: use {', '.join(KV_KINDS)}.")
    return KINDS[_ALSO.get(name, name)]


def blocks(tokens: int) -> int:
    """`tokens` rounded up to whole blocks: of an eighth of them or a little more, at most of `BLOCK`."""
    size = SMALLEST_BLOCK
    while size < BLOCK and size * 8 < tokens:
        size *= 2
    return -(-tokens // size) * size
