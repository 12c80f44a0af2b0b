"""What a prompt and its answer take beside the weights: KV cache, image features, and the prefill's own peak.

Asked before the tower runs: chooses the largest prefill chunk that fits, or refuses. While the answer grows, so does
the claim; when the card is full the answer ends, and nothing spills. Knows no pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmswap.card import Card, Reading
from mmswap.errors import DoesNotFit
from mmswap.swap.dry_run import DryRun
from mmswap.units import format_bytes

SMALLEST_CHUNK = 16
PAGE = 64  # tokens by which the claim on the KV cache grows


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Of one prefill step: its own peak, and what stays in the KV cache for each token; bytes."""

    peak: int
    kv_per_token: int


CostOf = Callable[[int, int], PrefillCost]
"""`(chunk, tokens) -> cost` of a prefill of `tokens` in steps of `chunk`."""


def prefill_cost(dry_run: DryRun, decoder: str) -> CostOf:
    """What a dry run of `decoder` (its dotted path) says.

    A step of a longer prompt also reads the cache so far: one layer's keys and values are copied when they grow, and
    the mask has a row of `tokens` for each token of the step.
    """

    def cost_of(chunk: int, tokens: int) -> PrefillCost:
        step = dry_run.prefill_peak(decoder, chunk)
        own = max(0, step.peak.total - step.kv_bytes)
        later = tokens - chunk
        return PrefillCost(own + later * (step.kv_bytes_per_token + 4 * chunk if later else 0), step.kv_bytes_per_token)

    return cost_of


class TextMemory:
    """The claims of one prompt at a time. `begin`, then `grow` as tokens come, and `release` in any case.

    Args:
        free: what can be had now; idle bytes of a pool included, for the allocator gives them before it fails.
        prefill_chunk: most tokens of one prefill step.
    """

    def __init__(self, cost_of: CostOf, card: Card, free: Callable[[], Reading], prefill_chunk: int) -> None:
        self._cost_of = cost_of
        self._card = card
        self._free = free
        self._chunk = prefill_chunk
        self._per_token = 0
        self._claimed = 0

    def begin(self, tokens: int, features: int, say: Callable[[str], None]) -> int:
        """The prefill chunk for a prompt of `tokens`, with `features` bytes of image features beside it.

        Raises:
            DoesNotFit: not even the smallest chunk fits beside the prompt's KV cache.
        """
        reading = self._free()
        chunk = min(self._chunk, _power_above(tokens))
        while True:
            cost = self._cost_of(min(chunk, tokens), tokens)
            need = cost.peak + tokens * cost.kv_per_token + features
            if need <= reading.bytes:
                break
            if chunk <= SMALLEST_CHUNK:
                raise DoesNotFit(f"The prompt of {tokens} tokens", need, reading.bytes)
            chunk = max(SMALLEST_CHUNK, chunk // 2)
        self._per_token = cost.kv_per_token
        say(
            f"Prefill of {tokens} tokens in steps of {min(chunk, tokens)}: {format_bytes(need)} with the KV cache of "
            f"{format_bytes(tokens * cost.kv_per_token)}, and {format_bytes(reading.bytes)} are free."
        )
        return chunk

    def claim_features(self, nbytes: int) -> None:
        """Image features live until the prefill has read them, and count until the answer ends."""
        self._card.claim("image features", nbytes)

    def grow(self, tokens: int) -> bool:
        """Whether the KV cache may hold `tokens`; if so they are claimed, in pages where there is room for pages."""
        if tokens <= self._claimed:
            return True
        room = self._claimed * self._per_token + self._free().bytes
        paged = -(-tokens // PAGE) * PAGE
        for wanted in (paged, tokens):
            if wanted * self._per_token <= room:
                self._claimed = wanted
                self._card.claim("KV cache", wanted * self._per_token)
                return True
        return False

    def release(self) -> None:
        """The prompt is over: its claims are struck out."""
        self._claimed = 0
        self._card.release("KV cache")
        self._card.release("image features")


def _power_above(tokens: int) -> int:
    power = SMALLEST_CHUNK
    while power < tokens:
        power *= 2
    return power
