"""What a prompt and its answer take beside the weights: KV cache, image features, and the prefill's own peak.

Asked before the tower runs: chooses the largest prefill chunk that fits, or refuses. While the answer grows, so does
the claim; when the card is full the answer ends, and nothing spills. Knows no pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmswap.card import Card, Reading
from mmswap.card.fill import over_once_placed
from mmswap.config import SMALLEST_CHUNK
from mmswap.errors import DoesNotFit
from mmswap.llm.division import Ahead
from mmswap.swap.dry_run import DryRun
from mmswap.swap.peak import Peak
from mmswap.swap.replay import ARENA
from mmswap.units import format_apart, format_bytes

STEP = 64
PAGE = 64  # tokens by which the claim on the KV cache grows


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Bytes of one prefill step beside the KV cache (`peak`), and of the cache.

    `kv_per_token` grows with the text; `kv_fixed` does not: recurrent states, and the keys of a picture that cross
    attention looks at. `layer_per_token` is the share that one layer copies when its keys grow by a token.
    """

    peak: int
    kv_per_token: int
    kv_fixed: int = 0
    layer_per_token: int = 0


CostOf = Callable[[int, int, Ahead], PrefillCost]
"""`(chunk, tokens, ahead) -> cost` of a prefill of `tokens` in steps of `chunk`."""


def prefill_cost(dry_run: DryRun, decoder: str, layers: int, groups: int) -> CostOf:
    """What dry runs of `decoder` (its dotted path, with `layers` layers) say.

    A step of a longer prompt also reads the cache so far: one layer's keys and values are copied when they grow, they
    are repeated for the `groups` of query heads that share them, and the mask has a row of `tokens` for each token.
    What a token adds to the cache is the difference between two small prompts, for a part of the cache is there
    whatever the length.
    """

    def own(chunk: int, **arguments: Any) -> int:
        step = dry_run.prefill_peak(decoder, chunk, **arguments)
        return max(0, _counted(step.peak).total - step.kv_bytes)

    def cost_of(chunk: int, tokens: int, ahead: Ahead) -> PrefillCost:
        masks = ahead.masks if chunk == ahead.tokens else {}
        if masks:
            step = own(chunk, **ahead.extra, **masks)
        else:
            step = between_powers(chunk, lambda size: own(size, **ahead.extra))
        one, two = (dry_run.prefill_peak(decoder, n * SMALLEST_CHUNK, **ahead.extra) for n in (1, 2))
        per_token = -(-(two.kv_bytes - one.kv_bytes) // SMALLEST_CHUNK)
        fixed = max(0, one.kv_bytes - SMALLEST_CHUNK * per_token)
        layer = -(-per_token // layers)
        return PrefillCost(step + (tokens - chunk) * ((1 + groups) * layer + 4 * chunk), per_token, fixed, layer)

    return cost_of


def query_groups(config: Any) -> int:
    """How many query heads share a key head, by the config of a language model."""
    heads = getattr(config, "num_attention_heads", None) or 1
    return max(1, heads // (getattr(config, "num_key_value_heads", None) or heads))


def between_powers(size: int, cost: Callable[[int], int]) -> int:
    """`cost(size)` or a little more, from its values at powers of two alone: a convex curve lies below its chords.

    Prompts have a thousand lengths, and each would cost a dry run of its own. Steps of 64 tokens are taken whole, for
    linear attention pads to them.
    """
    high = _power_above(size)
    if high <= STEP:
        return cost(high)
    size = -(-size // STEP) * STEP
    if size == high:
        return cost(size)
    below, above = cost(high // 2), cost(high)
    return max(below, below - (below - above) * (size - high // 2) // (high // 2))


def _counted(peak: Peak) -> Peak:
    """A simulated card counts tensors; what the host's kernels take inside one op is no affair of its."""
    return peak.lasting() if peak.policy is ARENA else peak


class TextMemory:
    """The claims of one prompt at a time. `begin`, `start`, then `grow` as tokens come, and `release` in any case.

    What is sized from free bytes is placed to see whether the budget holds it: it may fall as the card fills.

    Attributes:
        refusal: why `grow` said no the last time, a clause with the figures.

    Args:
        free: what can be had now; idle bytes of a pool included, for the allocator gives them before it fails.
        prefill_chunk: most tokens of one prefill step.
    """

    def __init__(self, cost_of: CostOf, card: Card, free: Callable[[], Reading], prefill_chunk: int) -> None:
        self._cost_of = cost_of
        self._card = card
        self._free = free
        self._chunk = prefill_chunk
        self._cost = PrefillCost(0, 0)
        self._ahead = Ahead()
        self._way = 0
        self._step = 0
        self._claimed = 0
        self.refusal = ""

    def size(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` and of the smallest prefill step that completes it."""
        cost = self._cost_of(SMALLEST_CHUNK, max(tokens, SMALLEST_CHUNK), Ahead())
        return tokens * cost.kv_per_token + cost.kv_fixed + cost.peak

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` of text; 0 where the dry run could not tell."""
        cost = self._cost_of(SMALLEST_CHUNK, SMALLEST_CHUNK, Ahead())
        return tokens * cost.kv_per_token + cost.kv_fixed

    def free(self) -> Reading:
        """What can be had now."""
        return self._free()

    def begin(
        self, tokens: int, features: int, say: Callable[[str], None], ahead: Ahead | None = None, way: int = 0
    ) -> int:
        """The prefill chunk for a prompt of `tokens`, with `features` bytes of image features beside it.

        Args:
            ahead: what the decoder will be given. way: the peak of making that.

        Raises:
            DoesNotFit: not even the smallest chunk fits beside the prompt's KV cache.
        """
        self._ahead, self._way = ahead or Ahead(), way
        self._step = self._cost_of(SMALLEST_CHUNK, SMALLEST_CHUNK, self._ahead).peak
        reading = self._free()

        def over(need: int) -> int:
            return over_once_placed(self._card, "the prompt", need, self._free)

        chunk, need = self._fitting(tokens, features, min(self._chunk, _power_above(tokens)), reading, over, say)
        whole, cache, free = format_apart(need, self._kept(tokens), reading.bytes)
        say(
            f"Prefill of {tokens} tokens in steps of {self._ahead.largest(chunk, tokens)}: {whole} with the KV cache "
            f"of {cache}, and {free} are free."
        )
        return chunk

    def start(self, tokens: int, features: int, chunk: int, say: Callable[[str], None]) -> int:
        """The prefill begins: everything is claimed. The chunk, smaller than `begin` gave if the budget fell meanwhile.

        Nothing is placed to see: that would wait for weights which are on their way back.

        Args:
            features: bytes of image features that lie on the card by now.

        Raises:
            DoesNotFit: the budget fell below what the prompt needs. Nothing was prefilled.
        """
        self._card.claim("image features", features)
        reading = self._free()

        def over(need: int) -> int:
            return max(0, need - reading.bytes + reading.over)

        fitting, _ = self._fitting(tokens, 0, chunk, reading, over, say)
        if fitting < chunk:
            free = format_bytes(reading.bytes)
            say(f"The prefill takes steps of {fitting} tokens instead of {chunk}: only {free} are free by now.")
        self._claim(tokens)
        return fitting

    def _fitting(
        self,
        tokens: int,
        features: int,
        chunk: int,
        reading: Reading,
        over_with: Callable[[int], int],
        say: Callable[[str], None],
    ) -> tuple[int, int]:
        """The largest chunk, from `chunk` downwards, that fits with everything else, and the bytes of all that."""
        ahead = self._ahead
        while True:
            self._cost = cost = self._cost_of(ahead.largest(chunk, tokens), tokens, ahead)
            need = self._kept(tokens) + max(self._way, ahead.held + cost.peak, self._reserve(tokens)) + features
            over = over_with(need)
            if not over:
                return chunk, need
            if chunk <= SMALLEST_CHUNK:
                advice = "use a larger card, a shorter prompt (/reset in a conversation) or fewer or smaller pictures"
                raise DoesNotFit(f"The prompt of {tokens} tokens", need, max(0, need - over), advice)
            smaller = max(SMALLEST_CHUNK, chunk // 2)
            if need <= reading.bytes:
                room = format_bytes(max(0, need - over))
                say(f"only {room} free once placed: shrinking the prefill step from {chunk} to {smaller} tokens")
            chunk = smaller

    def _kept(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens`."""
        return tokens * self._cost.kv_per_token + self._cost.kv_fixed if tokens else 0

    def _reserve(self, tokens: int) -> int:
        """What the next step of the answer needs beside the KV cache."""
        return self._step + tokens * self._cost.layer_per_token

    def grow(self, tokens: int) -> bool:
        """Whether the KV cache may hold `tokens`; if so they are claimed, in pages where there is room for pages."""
        if tokens <= self._claimed:
            return True
        paged = -(-tokens // PAGE) * PAGE
        for wanted in dict.fromkeys((paged, tokens)):
            more = self._kept(wanted) - self._kept(self._claimed) + self._reserve(wanted)
            over = over_once_placed(self._card, "the next page of KV cache", more, self._free)
            if not over:
                self._claim(wanted)
                return True
        needed, free = format_apart(more, max(0, more - over))
        self.refusal = f"the next step needs {needed} and {free} can be had"
        return False

    def _claim(self, tokens: int) -> None:
        self._claimed = tokens
        self._card.claim("KV cache", self._kept(tokens))

    def exhausted(self) -> DoesNotFit:
        """The error for a card that refused an allocation while the prompt or its answer was computed."""
        reading = self._free()
        need = max(reading.bytes + 1, self._reserve(self._claimed))
        why = "the card refused it though so much is called free; a --vram-limit or a shorter --context leaves it room"
        return DoesNotFit(f"The next step beside {self._claimed} tokens", need, reading.bytes, why)

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
