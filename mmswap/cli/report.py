"""What the command line says about an answer: the text as it comes, the reasons, and one line of numbers at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mmswap.units import format_bytes

if TYPE_CHECKING:
    from mmswap.answer import Answer


def write(text: str) -> None:
    """A piece of the answer, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def explain(decision: str) -> None:
    """One decision with its reason, on standard error."""
    print(f"· {decision}", file=sys.stderr, flush=True)


def line(answer: Answer) -> None:
    """The numbers of one answer, on standard error."""
    print(f"[{summary(answer)}]", file=sys.stderr, flush=True)


def summary(answer: Answer) -> str:
    """Image patches and encode time, peak, eviction, restore, prefill and decode rates."""
    parts = [_images(answer)] if answer.images else []
    window = answer.window
    if window.evicted:
        hidden = window.restore_hidden_ms / window.restore_ms if window.restore_ms else 1.0
        parts.append(
            f"evicted {_units(len(window.evicted))} ({format_bytes(window.evicted_bytes)}), "
            f"restored in {window.restore_ms:.1f} ms ({hidden:.0%} hidden)"
        )
    elif answer.images:
        parts.append("nothing evicted")
    if window.spilled_bytes:
        parts.append(f"SPILLED {format_bytes(window.spilled_bytes)}")
    parts.append(f"prefill {answer.prefill_tok_s:.0f} tok/s")
    if answer.decode_tok_s:  # an answer of one token is the prefill's alone
        parts.append(f"decode {answer.decode_tok_s:.1f} tok/s")
    parts.append(answer.card)
    return " | ".join(parts)


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"


def _images(answer: Answer) -> str:
    patches = "+".join(str(image.patches) for image in answer.images)
    if not any(image.encode_ms for image in answer.images):
        return f"{patches} patches, encoded before"
    encode = sum(image.encode_ms for image in answer.images)
    first = answer.images[0]
    peaks = f"peak {format_bytes(first.peak_predicted)} predicted, {format_bytes(first.peak_measured)} measured"
    return f"{patches} patches in {encode:.1f} ms, {peaks}"
