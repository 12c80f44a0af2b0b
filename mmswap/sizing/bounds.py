"""Why no longer context and no larger picture fits: a sentence for each limit. Knows figures, no models.

sentences(sizing, found, most=128000) -> ["Beyond 38055 tokens the cache leaves the smallest prefill step no room, ..."]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.sizing.answer import Sizing

if TYPE_CHECKING:
    from mmswap.sizing.search import Found

CAP, TOKENS, PROMPT, ENCODER = "cap", "tokens", "prompt", "encoder"  # what is in the way of more
_WHO = {PROMPT: "the smallest prefill step", ENCODER: "the encoder", TOKENS: "the context"}
_NO_HELP = {
    PROMPT: ", and a window does not help: all weights are back when the prompt is read",
    TOKENS: ", with a window or without",
    ENCODER: ", whatever gives way",
}


def sentences(sizing: Sizing, found: Found, most: int) -> list[str]:
    """`most`: tokens that the model was made for."""
    limits = sizing.limits
    said = _both(
        sizing.swaps,
        (_context(limits.context, found.context, most), found.context),
        (_context(limits.context_with_window, found.context_with_window, most), found.context_with_window),
    )
    said += _both(
        sizing.swaps,
        (_image(sizing, found, limits.image, found.image), found.image),
        (_image(sizing, found, limits.image_with_window, found.image_with_window), found.image_with_window),
    )
    if found.apart:
        said.append("The pictures of the limits with a window are encoded one at a time, which needs the least room.")
    return said


def _both(swaps: bool, plain: tuple[str, str], window: tuple[str, str]) -> list[str]:
    """One sentence where a window changes nothing, and why it does not; else one for each."""
    if plain[0] == window[0]:
        return [f"{window[0]}{_NO_HELP.get(window[1], '') if swaps else ''}."]
    return [
        f"{start} {text[0].lower()}{text[1:]}."
        for start, (text, _) in zip(("Without eviction,", "With a window,"), (plain, window))
    ]


def _context(tokens: int, why: str, most: int) -> str:
    if not tokens:
        return f"No context holds these pictures: {_WHO[why]} has no room"
    if why == CAP:
        return f"The longest context is capped by the model: it was made for {most} tokens"
    return f"Beyond {tokens} tokens the cache leaves {_WHO[why]} no room"


def _image(sizing: Sizing, found: Found, size: tuple[int, int], why: str) -> str:
    if not size[0]:
        return f"No picture fits: {_WHO[why]} has no room"
    if why == CAP and found.cap.fixed:
        return f"Any picture fits: the tower sees about {size[0]}x{size[1]} of it, whatever its size"
    if why == CAP:
        return f"Any picture fits: one above {size[0]}x{size[1]} becomes no more patches by the model's processor"
    if why == TOKENS:
        return f"Above {size[0]}x{size[1]} there are more tokens of pictures than a context of {sizing.context} holds"
    if why == PROMPT:
        return f"Above {size[0]}x{size[1]} the features leave {_WHO[why]} no room"
    return f"Above {size[0]}x{size[1]} the encoder has no room"
