"""What reading a prompt takes beside weights and cache: its embeddings and masks, and the largest step of its prefill.

    reading = Reading(facts, (1344, 1344, 1))
    reading.layout.nbytes(...), reading.step(tokens=32768, chunk=2048)

The arithmetic of a step is `llm/memory.py`'s, as the runtime has it. Knows no torch.
"""

from __future__ import annotations

from mmswap.config import SMALLEST_CHUNK
from mmswap.sizing.facts import Facts, Size


class Reading:
    """A prompt with pictures, and how it grows to fill a context.

    Attributes:
        given: what the decoder is given for it; its layout of the KV cache, the way there, whether in one pass.
    """

    def __init__(self, facts: Facts, size: Size) -> None:
        self._facts, self._size = facts, size
        self.given = facts.given(size)
        self.layout, self.way, self.whole = self.given.layout, self.given.way, self.given.whole
        self._steps: dict[int, tuple[int, int]] = {}
        self._together: dict[int, int] = {}

    def held(self, tokens: int) -> int:
        """Bytes of what the decoder is given for a prompt of `tokens`; masks grow with their square, and what cross
        attention looks at does not grow.
        """
        given, size = self.given, self.given.tokens
        return given.seen + given.words * tokens // size + given.masks * tokens * tokens // (size * size)

    def step(self, tokens: int, chunk: int) -> int:
        """Bytes of the last step of a prompt of `tokens` in steps of `chunk`, the cache not counted."""
        largest = self.largest(tokens, chunk)
        if largest not in self._steps:
            self._steps[largest] = self._facts.step(self._size, largest)
        whole, slope = self._steps[largest]
        return whole + (tokens - largest) * slope

    def largest(self, tokens: int, chunk: int) -> int:
        """Tokens of the largest step: those that look at each other stay together."""
        if self.whole:
            return tokens
        if chunk not in self._together:
            self._together[chunk] = self._facts.together(self._size, chunk)
        return min(tokens, max(chunk, self._together[chunk]))

    def chunks(self, most: int) -> list[int]:
        """The steps that are tried, the largest first, as the runtime halves them."""
        found = [most]
        while found[-1] > SMALLEST_CHUNK:
            found.append(max(SMALLEST_CHUNK, found[-1] // 2))
        return found
