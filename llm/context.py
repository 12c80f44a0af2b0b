"""How many tokens a prompt and its answer may hold: what the model was made for, or what the card has room for.

    context = choose_context(memory, card, limit=32768, wanted=None, say=print);  context.tokens

Sized from free bytes, placed once, and shrunk to what is within the budget then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mmswap.card import Card
from mmswap.card.fill import fill, most_within
from mmswap.config import SMALLEST_CHUNK
from mmswap.errors import ContextOverflow, OptionError, UserError
from mmswap.llm.memory import TextMemory
from mmswap.units import format_apart, format_bytes

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Context:
    """What was chosen.

    Attributes:
        tokens: of prompt and answer together.
        kv_bytes: of their KV cache, when it is full.
        by_card: whether the card, and neither the model nor the user, set the limit.
        reason: one clause.
    """

    tokens: int
    kv_bytes: int
    by_card: bool
    reason: str


class ContextBeyondCard(ContextOverflow):
    """The prompt is longer than what the card has room for; a larger --context would not help."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.context = context
        UserError.__init__(
            self,
            f"The prompt has {prompt_tokens} tokens and the card has room for {context}: shorten it, use fewer or "
            "smaller images (--image-max-pixels), or a larger card.",
        )


def choose_context(memory: TextMemory, card: Card, *, limit: int, wanted: int | None, say: Say) -> Context:
    """The context, said with its reason.

    Args:
        limit: tokens that the model was made for.
        wanted: tokens that the user asked for; they stand, and are only said not to fit.
        say: told each decision.

    Raises:
        OptionError: more are wanted than the model was made for.
    """
    if wanted is not None and wanted > limit:
        raise OptionError(f"--context {wanted} is above the {limit} tokens that this model was made for.")
    asked = limit if wanted is None else wanted
    held = _held(memory, card, asked, say if wanted is None else _silent)
    if wanted is not None:
        if held < wanted:
            say(_too_much(memory, wanted, held))
        return Context(wanted, memory.kv_bytes(wanted), False, "as asked for")
    if held >= limit:
        return Context(limit, memory.kv_bytes(limit), False, "what the model was made for")
    reason = (
        f"what the card has room for of the {limit} that the model was made for: a KV cache of "
        f"{format_bytes(memory.kv_bytes(held))} beside the weights and one prefill step"
    )
    return Context(held, memory.kv_bytes(held), True, reason)


def _held(memory: TextMemory, card: Card, most: int, say: Say) -> int:
    """The tokens up to `most` whose KV cache and prefill step the card holds, checked once placed."""
    least = min(SMALLEST_CHUNK, most)
    if memory.kv_bytes(most) == memory.kv_bytes(least):  # it does not grow, or the dry run could not tell
        return most
    free = memory.free().bytes
    fits = max(least, most if memory.size(most) <= free else most_within(free, most, memory.size))

    def place(tokens: int) -> AbstractContextManager[bool]:
        return card.placed("KV cache and a prefill step", memory.size(tokens))

    held = fill(fits, place, memory.free, memory.size, say, smallest=least)
    if held == least < most and memory.size(held) > memory.free().bytes:
        needed, free_text = format_apart(memory.size(held), memory.free().bytes)
        say(f"The card has no room for a text: even {held} tokens need {needed}, and {free_text} are free.")
    return held


def _too_much(memory: TextMemory, wanted: int, held: int) -> str:
    needed, free = format_apart(memory.size(wanted), memory.free().bytes)
    return (
        f"The context of {wanted} tokens that was asked for (--context) does not fit: its KV cache and one prefill "
        f"step need {needed}, and {free} are free. The card has room for about {held} tokens; answers end there with "
        "`length`."
    )


def _silent(_: str) -> None:
    """The user's own context is not shrunk, so nothing is said of shrinking it."""
