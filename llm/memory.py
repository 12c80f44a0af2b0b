"""What a prompt and its answer take beside the weights: KV cache, image features, and the prefill's own peak.

Asked before the tower runs: chooses the largest prefill chunk that fits, or refuses. While the answer grows, so does
the claim; when the card is full the answer ends, and nothing spills. Knows no pictures.
"""

from __future__ import annotations

from collections.abc import Callable

from mmswap.card import Card, Reading
from mmswap.card.fill import over_once_placed
from mmswap.config import SMALLEST_CHUNK
from mmswap.errors import DoesNotFit
from mmswap.llm.costs import CostOf, PrefillCost, nothing, power_above
from mmswap.llm.division import Ahead
from mmswap.llm.kv.kinds import blocks
from mmswap.units import format_apart, format_bytes


class TextMemory:
    """The claims of one prompt at a time. `begin`, `start`, then `grow` as tokens come, and `release` in any case.

    What is sized from free bytes is placed to see whether the budget holds it: it may fall as the card fills.

    Attributes:
        refusal: why `grow` said no the last time, a clause with the figures.
        held: bytes of the KV cache that is claimed now.
        on_top: bytes that others need at the same time and have not claimed. alike: the same that they need in turn
            with the sequence's own next step.

    Args:
        free: what can be had now; idle bytes of a pool included, for the allocator gives them before it fails.
        prefill_chunk: most tokens of one prefill step.
        number: of the sequence: each has its own lines in the card's ledger.
    """

    def __init__(
        self, cost_of: CostOf, card: Card, free: Callable[[], Reading], prefill_chunk: int, number: int = 1
    ) -> None:
        self._cost_of = cost_of
        self._card = card
        self._free = free
        self._chunk = prefill_chunk
        self._cost = PrefillCost(0, nothing)
        self._ahead = Ahead()
        self._way = 0
        self._step = 0
        self._claimed = 0
        self.refusal = ""
        self.held = 0
        self.on_top: Callable[[], int] = int
        self.alike: Callable[[], int] = int
        mark = "" if number == 1 else f" {number}"
        self._cache_line, self._features_line = f"KV cache{mark}", f"image features{mark}"

    def another(self, number: int) -> TextMemory:
        """The claims of another sequence on the same card."""
        return TextMemory(self._cost_of, self._card, self._free, self._chunk, number)

    @property
    def step(self) -> int:
        """Bytes that the sequence's next token takes while it goes through the model; 0 before it has begun."""
        return self._reserve(self._claimed) if self._claimed else 0

    @property
    def prefill(self) -> int:
        """Bytes that reading the prompt takes beside its KV cache."""
        return max(self._way, self._ahead.held + self._cost.peak)

    def size(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` and of the smallest prefill step that completes it."""
        cost = self._cost_of(SMALLEST_CHUNK, max(tokens, SMALLEST_CHUNK), Ahead())
        return cost.kv(tokens) + cost.peak

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the KV cache of `tokens` of text; 0 where the dry run could not tell."""
        cost = self._cost_of(SMALLEST_CHUNK, SMALLEST_CHUNK, Ahead())
        return cost.kv(tokens)

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
        if self._ahead.unknown:
            say(f"Of what the decoder is given, only the embeddings are counted, because {self._ahead.unknown}.")
        self._step = self._cost_of(SMALLEST_CHUNK, SMALLEST_CHUNK, self._ahead).peak
        reading = self._free()

        def over(need: int) -> int:
            return over_once_placed(self._card, "the prompt", need, self._free)

        chunk, need = self._fitting(tokens, features, min(self._chunk, power_above(tokens)), reading, over, say)
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
        self._card.claim(self._features_line, features)
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
            self._cost = self._cost_of(ahead.largest(chunk, tokens), tokens, ahead)
            need = self._kept(tokens) + max(self.prefill, self._reserve(tokens)) + features
            need += self.on_top()
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
        return self._cost.kv(tokens) if tokens else 0

    def _reserve(self, tokens: int) -> int:
        """What the next step of the answer needs beside the KV cache."""
        return self._step + tokens * self._cost.layer_per_token

    def grow(self, tokens: int) -> bool:
        """Whether the KV cache may hold `tokens`; if so they are claimed, in whole blocks."""
        if tokens <= self._claimed:
            return True
        for wanted in dict.fromkeys((blocks(tokens), tokens)):
            more = self._kept(wanted) - self._kept(self._claimed) + max(self._reserve(wanted), self.alike())
            more += self.on_top()
            over = over_once_placed(self._card, "the next block of KV cache", more, self._free)
            if not over:
                self._claim(wanted)
                return True
        needed, free = format_apart(more, max(0, more - over))
        self.refusal = f"the next step needs {needed} and {free} can be had"
        return False

    def _claim(self, tokens: int) -> None:
        self._claimed = tokens
        self.held = self._kept(tokens)
        self._card.claim(self._cache_line, self.held)

    def exhausted(self) -> DoesNotFit:
        """The error for a card that refused an allocation while the prompt or its answer was computed."""
        reading = self._free()
        need = max(reading.bytes + 1, self._reserve(self._claimed))
        why = "the card refused it though so much is called free; a --vram-limit or a shorter --context leaves it room"
        return DoesNotFit(f"The next step beside {self._claimed} tokens", need, reading.bytes, why)

    def release(self) -> None:
        """The prompt is over: its claims are struck out."""
        self._claimed = self.held = 0
        self._card.release(self._cache_line)
        self._card.release(self._features_line)
