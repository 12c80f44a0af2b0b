"""What a request took. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmswap.llm.prefill import Chunking


@dataclass(slots=True)
class Statistics:
    """What the request took so far: tokens and seconds of both phases, and how the prompt was divided and why."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    chunking: Chunking = field(default_factory=Chunking)
    reused_tokens: int = 0

    @property
    def prefill_rate(self) -> float | None:
        """Tokens a second that were really read, or None before there is anything to divide."""
        return (self.prefill_tokens - self.reused_tokens) / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second. The first token is the prefill's, hence one less."""
        steps = self.decode_tokens - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else None
