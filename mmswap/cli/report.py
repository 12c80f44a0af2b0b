"""What the command line says about an answer: the text as it comes, the reasons, and one line of numbers at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from mmswap.units import format_apart, format_bytes

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.measured import Load


def write(text: str) -> None:
    """A piece of the answer, at once.

    Raises:
        OSError: it cannot be written; what is left in the buffer is dropped, so that the interpreter does not try it
            again at its end, and complain.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        raise


def explain(decision: str) -> None:
    """One decision with its reason, on standard error."""
    _note(f"· {decision}")


def line(answer: Answer, *, first: bool = False) -> None:
    """The numbers of one answer, on standard error; after the first one also the weights, if they are not what was
    predicted. `--explain` tells them in any case, among the decisions.
    """
    load = answer.load
    weights = [_weights(load)] if first and load is not None and _strays(load) else []
    _note(f"[{' | '.join([summary(answer), *weights])}]")


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
    elif answer.spill is not None and answer.spill.bytes:
        parts.append(f"SPILLED {format_bytes(answer.spill.bytes)}")
    if answer.spill is not None and answer.spill.count:
        parts.append(f"{_times(answer.spill.count)} so far, {format_bytes(answer.spill.worst_bytes)} at worst")
    if answer.reused_tokens:
        parts.append(f"{answer.reused_tokens} of {answer.prompt_tokens} tokens kept")
    parts.append(f"prefill {answer.prefill_tok_s:.0f} tok/s")
    if answer.decode_tok_s:  # an answer of one token is the prefill's alone
        parts.append(f"decode {answer.decode_tok_s:.1f} tok/s")
    parts.append(answer.card)
    return " | ".join(parts)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):  # a standard error that cannot be written must not end the answer
        print(text, file=sys.stderr, flush=True)


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"


def _times(count: int) -> str:
    return "1 spill" if count == 1 else f"{count} spills"


def _strays(load: Load) -> bool:
    """Whether the weights took more than 1 % more or less than was predicted."""
    return abs(load.weights_measured - load.weights_predicted) * 100 > load.weights_predicted


def _weights(load: Load) -> str:
    predicted, measured = format_apart(load.weights_predicted, load.weights_measured)
    return f"weights {predicted} predicted, {measured} measured"


def _images(answer: Answer) -> str:
    patches = "+".join(str(image.patches) for image in answer.images)
    if not any(image.encode_ms for image in answer.images):
        return f"{patches} patches, encoded before"
    encode = sum(image.encode_ms for image in answer.images)
    first = answer.images[0]
    predicted, measured = format_apart(first.peak_predicted, first.peak_measured)
    return f"{patches} patches in {encode:.1f} ms, peak {predicted} predicted, {measured} measured"
