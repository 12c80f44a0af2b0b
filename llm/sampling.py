"""Choose the next token from logits. Knows no model: `Sampler(config, prompt_ids).next(logits)`, token after token.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p. Everything runs in fp32 on the
CPU with a generator of the request's own, so that equal seeds give equal answers whatever else is running.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import torch
from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.errors import NonFiniteLogits

_NEVER = float("-inf")


class Sampler:
    """The choice of tokens for one request.

    Attributes:
        seed: what the generator was seeded with (drawn freshly if the config gives none).
    """

    def __init__(self, config: SamplingConfig, prompt_ids: Iterable[int] = ()) -> None:
        self._config = config
        self._seen = set(prompt_ids)
        self.seed = secrets.randbits(63) if config.seed is None else config.seed
        self._generator = torch.Generator().manual_seed(self.seed)

    def next(self, logits: Tensor) -> int:
        """The next token's id; it counts as seen from now on.

        Args:
            logits: `[V]`, any float type, any device.

        Raises:
            NonFiniteLogits: NaN among the logits, or nothing finite to choose from.
        """
        scores = logits.detach().to(device="cpu", dtype=torch.float32)
        if not torch.isfinite(scores.max()):  # max() hands on NaN
            raise NonFiniteLogits(
                "The model computed NaN or only infinite values for the next token: try --dtype float32 or bfloat16."
            )
        scores = self._penalised(scores)
        token = int(scores.argmax()) if self._config.greedy else self._draw(scores)
        self._seen.add(token)
        return token

    def _penalised(self, scores: Tensor) -> Tensor:
        """Keskar et al. 2019, CTRL, section 4.1: what was seen before is divided (or multiplied, if negative)."""
        penalty = self._config.repetition_penalty
        if penalty == 1.0:
            return scores
        seen = torch.tensor([token for token in self._seen if 0 <= token < len(scores)], dtype=torch.long)
        chosen = scores[seen]
        return scores.index_copy(0, seen, torch.where(chosen < 0, chosen * penalty, chosen / penalty))

    def _draw(self, scores: Tensor) -> int:
        config = self._config
        scores = (scores - scores.max()) / config.temperature
        if 0 < config.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(config.top_k).values[-1], _NEVER)
        if config.top_p < 1:
            scores = scores.masked_fill(_beyond_nucleus(scores, config.top_p), _NEVER)
        if config.min_p > 0:
            chances = scores.softmax(-1)
            scores = scores.masked_fill(chances < config.min_p * chances.max(), _NEVER)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def _beyond_nucleus(scores: Tensor, top_p: float) -> Tensor:
    """True for what lies outside the smallest set of likeliest tokens whose chances add up to `top_p`.

    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration. The likeliest token always stays.
    """
    ordered, order = scores.sort(descending=False)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    outside[-1] = False
    return torch.zeros_like(outside).index_copy(0, order, outside)
