"""What a plan has to know of a model, as plain figures. Who finds them: `traced.py`; who keeps them: `memory.py`.

A `Facts` answers a question for pictures of a size, `(width, height, how many)`, in pixels. Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mmswap.llm.kv.layout import KvLayout
from mmswap.sizing.weights import Weights
from mmswap.swap.peak import Peak

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class About:
    """What a model's config says.

    Attributes:
        dtype, attention: as it is planned for. most: tokens that it was made for.
        frames: alike ones that a picture becomes. quantised: how the checkpoint is; empty if it is not.
    """

    dtype: str
    attention: str
    most: int
    frames: int
    quantised: str


@dataclass(frozen=True, slots=True)
class Seen:
    """Pictures of one size as the model sees them."""

    patches: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Pictures of one size in one tower call; bytes.

    Attributes:
        pixels: of what the processor made of them, masks included; colours: without these.
        features: of what the tower makes of that. peak: in between.
    """

    width: int
    height: int
    images: int
    picture: Seen
    pixels: int
    colours: int
    features: int
    peak: Peak

    @property
    def total(self) -> int:
        """Bytes that must be free when nothing is lent."""
        return self.need(0)

    def need(self, lent: int) -> int:
        """Bytes outside of `lent` lent ones: peak, pixels, and the features that are copied out."""
        return self.peak.beyond(lent) + self.pixels + self.features


@dataclass(frozen=True, slots=True)
class Given:
    """What a decoder is given for pictures and some words; bytes.

    Attributes:
        tokens: of pictures and words. way: the peak of making all that. whole: it is read in one pass only.
        words: what grows with the prompt. masks: what grows with its square. seen: what does not grow.
        layout: of the KV cache. unknown: why nothing but embeddings is counted, where that is so.
    """

    tokens: int
    way: int
    whole: bool
    words: int
    masks: int
    seen: int
    layout: KvLayout
    unknown: str = ""


@runtime_checkable
class Facts(Protocol):
    """A model's answers to a plan's questions."""

    name: str

    def about(self) -> About: ...

    def weights(self, quantize: str | None) -> Weights: ...

    def patches(self, size: Size) -> int:
        """Of such pictures; nothing is traced."""

    def cost(self, size: Size) -> Cost:
        """Of encoding them in one call."""

    def given(self, size: Size) -> Given:
        """What their prompt's decoder is given."""

    def together(self, size: Size, chunk: int) -> int:
        """Tokens of the largest step of their prompt where at most `chunk` are asked for; 0 where it is no longer."""

    def step(self, size: Size, chunk: int) -> tuple[int, int]:
        """Bytes of a prefill step of `chunk` tokens with nothing before it, and what each token before it adds."""
