"""What one prompt came to: the text, and every number behind it. Sizes are bytes, times milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mmswap.card.spill import SpillCount
from mmswap.measured import Load
from mmswap.swap.report import WindowReport

if TYPE_CHECKING:
    from mmswap.vision.job import Encoded
    from mmswap.vision.processor import Prepared


@dataclass(frozen=True, slots=True)
class ImageReport:
    """One picture of the prompt.

    Pictures of one prompt are encoded in one tower call; then `encode_ms` is the call's time shared out by patches, and
    both peaks are the call's.
    """

    width: int
    height: int
    patches: int
    tokens: int
    encode_ms: float
    peak_predicted: int
    peak_measured: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one prompt. `finish_reason` is `stop` or `length`.

    `reused_tokens` of the prompt were not read, for the turn before had left them in the KV cache.
    `load` is what loading the model came to, `spill` what was noticed in this process until now.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    images: tuple[ImageReport, ...]
    window: WindowReport
    prefill_tok_s: float
    decode_tok_s: float
    card: str
    decisions: tuple[str, ...] = ()
    reused_tokens: int = 0
    load: Load | None = None
    spill: SpillCount | None = None

    def to_json(self) -> Mapping[str, Any]:
        """The object that `mmswap chat --json` prints."""
        window = self.window.as_dict()
        window.pop("peak_measured", None)
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "usage": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens},
            "images": [asdict(image) for image in self.images],
            "window": window,
            "prefill_tok_s": self.prefill_tok_s,
            "decode_tok_s": self.decode_tok_s,
            "card": self.card,
            "load": self.load.as_dict() if self.load is not None else None,
            "spill": asdict(self.spill) if self.spill is not None else None,
        }


def image_reports(prepared: Prepared, encoded: Encoded | None) -> tuple[ImageReport, ...]:
    """A report for each picture of a prompt; `encoded` is None where none was encoded."""
    if encoded is None:  # none, or none that was encoded
        return tuple(ImageReport(one.width, one.height, one.patches, one.tokens, 0.0, 0, 0) for one in prepared.images)
    patches = sum(image.patches for image in prepared.images) or 1
    return tuple(
        ImageReport(
            width=image.width,
            height=image.height,
            patches=image.patches,
            tokens=image.tokens,
            encode_ms=encoded.encode_ms * image.patches / patches,
            peak_predicted=encoded.peak_predicted,
            peak_measured=encoded.report().peak_measured,
        )
        for image in prepared.images
    )
