"""The answer of a plan: every figure with its name, and the sentences that say why. Plain values; knows no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FITS, WINDOW, ONE_BY_ONE, HOST, NOT = "fits", "with a window", "one picture at a time", "encoder on the CPU", "no"
NOTICE = "This is a calculation, not a measurement."


@dataclass(frozen=True, slots=True)
class Encoding:
    """The pictures of a plan; bytes.

    Attributes:
        width, height, images: as asked. patches, tokens: of all of them.
        pixels, features: of the tower's input and output. live: most bytes of tensors alive in between.
        reserved: what torch's allocator takes from a real card for that. peak: what is counted for this card.
    """

    width: int
    height: int
    images: int
    patches: int
    tokens: int
    pixels: int
    features: int
    live: int
    reserved: int
    peak: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest that fit, without eviction and with a window; 0: nothing does. Pictures as (width, height).

    Attributes:
        cap: the size above which a picture costs no more: where it fits, any picture does.
    """

    context: int
    context_with_window: int
    image: tuple[int, int]
    image_with_window: tuple[int, int]
    cap: tuple[int, int] = (0, 0)

    @property
    def pixels(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def pixels_with_window(self) -> int:
        return self.image_with_window[0] * self.image_with_window[1]


@dataclass(frozen=True, slots=True)
class Sizing:
    """What `size_up` found. Bytes are ints; `groups` and `free` add up to `total` (a negative `free` is missing).

    Attributes:
        fits: one of the words above. need, deficit, evict, lent, shortfall: as in `swap.plan.Plan`.
        scratch: bytes of the prompt's largest prefill step, of `step` tokens, embeddings and masks included.
        moments: what the card holds while a picture is encoded and while the prompt is read.
        swaps: whether giving up weights makes room on this card.
        doubt: why a figure is not known, so that the answer may be wrong; empty where all are.
    """

    model: str
    dtype: str
    attention: str
    card: str
    kv: str
    quantize: str | None
    context: int
    total: int
    free: int
    groups: dict[str, int]
    kv_bytes_per_token: int
    encoding: Encoding
    scratch: int
    step: int
    fits: str
    need: int
    deficit: int
    evict: tuple[str, ...]
    lent: int
    shortfall: int
    window_ms: float
    link_rate: int
    limits: Limits
    reasons: tuple[str, ...]
    moments: dict[str, dict[str, int]] = field(default_factory=dict)
    swaps: bool = True
    doubt: str = ""

    def to_json(self) -> dict[str, Any]:
        """The object that `mmswap plan --json` prints."""
        e, limits = self.encoding, self.limits
        return {
            "model": self.model,
            "dtype": self.dtype,
            "attention": self.attention,
            "quantize": self.quantize,
            "kv": self.kv,
            "context": self.context,
            "card": {"name": self.card, "total": self.total, "free": self.free, "link_rate": self.link_rate},
            "groups": dict(self.groups),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "image": {
                "width": e.width,
                "height": e.height,
                "images": e.images,
                "patches": e.patches,
                "tokens": e.tokens,
            },
            "peak": {
                "live": e.live,
                "reserved": e.reserved,
                "counted": e.peak,
                "pixels": e.pixels,
                "features": e.features,
            },
            "scratch": self.scratch,
            "prefill_step": self.step,
            "fits": self.fits,
            "need": self.need,
            "deficit": self.deficit,
            "evict": list(self.evict),
            "evict_bytes": self.lent,
            "shortfall": self.shortfall,
            "window_ms": self.window_ms,
            "max_context": limits.context,
            "max_context_with_window": limits.context_with_window,
            "max_pixels": limits.pixels,
            "max_pixels_with_window": limits.pixels_with_window,
            "max_image": list(limits.image),
            "max_image_with_window": list(limits.image_with_window),
            "any_image": limits.image[0] > 0 and limits.image == limits.cap,
            "any_image_with_window": limits.image_with_window[0] > 0 and limits.image_with_window == limits.cap,
            "moments": {name: dict(held) for name, held in self.moments.items()},
            "doubt": self.doubt,
            "reasons": list(self.reasons),
            "measured": False,
        }
