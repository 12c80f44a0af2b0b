"""Choose the next token from logits. Knows no model: `Sampler(config, prompt_ids).next(logits)`, token after token.

The order is that of transformers: repetition penalty, (presence and frequency penalty, bias, what a grammar allows,)
temperature, top-k, top-p, min-p. Everything runs in fp32 on the CPU with a generator of the request's own, so that
equal seeds give equal answers whatever else is running.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.errors import NonFiniteLogits

_NEVER = float("-inf")
_MOST = 1e20  # of what scores are changed by: more makes no difference to them, and float32 ends soon after


class Constraint(Protocol):
    """What the answer must look like, token by token: a grammar, for example."""

    def limit(self, scores: Tensor) -> Tensor:
        """`[V]` fp32 with -inf where a token must not come next; at least one token stays."""

    def accept(self, token: int) -> None:
        """That token was chosen."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the model itself said of a token, before penalties, bias and temperature: natural logarithms.

    `top`: (token, logarithm) of the likeliest ones, as many as `SamplingConfig.logprobs` asks for, likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The choice of tokens for one request.

    Attributes:
        seed: what the generator was seeded with (drawn freshly if the config gives none).
        chosen: of the last token, where the config asks for logprobs.
    """

    def __init__(
        self, config: SamplingConfig, prompt_ids: Iterable[int] = (), constraint: Constraint | None = None
    ) -> None:
        self.chosen: Chosen | None = None
        self._config = config
        self._constraint = constraint
        self._seen = set(prompt_ids)
        self._given: Counter[int] = Counter()
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
        logits, scores = scores, self._counted(self._penalised(scores))
        if self._constraint is not None:
            scores = self._constraint.limit(scores)
        token = int(scores.argmax()) if self._config.greedy else self._draw(scores)
        self._seen.add(token)
        self._given[token] += 1
        if self._constraint is not None:
            self._constraint.accept(token)
        if self._config.logprobs is not None:
            self.chosen = _chosen(logits, token, self._config.logprobs)
        return token

    def _counted(self, scores: Tensor) -> Tensor:
        """Less for what the answer holds already, and the biases."""
        config, size = self._config, len(scores)
        changes = [(token, bias) for token, bias in config.logit_bias if 0 <= token < size]
        if config.presence_penalty or config.frequency_penalty:
            for token, count in self._given.items():
                changes.append((token, -config.presence_penalty - count * config.frequency_penalty))
        if not changes:
            return scores
        places = torch.tensor([token for token, _ in changes], dtype=torch.long)
        amounts = [max(-_MOST, min(_MOST, change)) for _, change in changes]
        return scores.index_add(0, places, torch.tensor(amounts, dtype=scores.dtype))

    def _penalised(self, scores: Tensor) -> Tensor:
        """Keskar et al. 2019, CTRL, section 4.1: what was seen before is divided (or multiplied, if negative)."""
        penalty = max(1 / _MOST, min(_MOST, self._config.repetition_penalty))
        if penalty == 1.0:
            return scores
        seen = torch.tensor([token for token in self._seen if 0 <= token < len(scores)], dtype=torch.long)
        chosen = scores[seen]
        return scores.index_copy(0, seen, torch.where(chosen < 0, chosen * penalty, chosen / penalty))

    def _draw(self, scores: Tensor) -> int:
        config = self._config
        scores = (scores - scores.max()) / min(_MOST, config.temperature)
        if 0 < config.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(config.top_k).values[-1], _NEVER)
        if config.top_p < 1:
            scores = scores.masked_fill(_beyond_nucleus(scores, config.top_p), _NEVER)
        if config.min_p > 0:
            chances = scores.softmax(-1)
            scores = scores.masked_fill(chances < config.min_p * chances.max(), _NEVER)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def _chosen(logits: Tensor, token: int, count: int) -> Chosen:
    logprobs = logits.log_softmax(-1)
    values, places = logprobs.topk(min(count, len(logprobs)))
    return Chosen(float(logprobs[token]), tuple(zip(places.tolist(), values.tolist())))


def _beyond_nucleus(scores: Tensor, top_p: float) -> Tensor:
    """True for what lies outside the smallest set of likeliest tokens whose chances add up to `top_p`.

    Holtzman et al. 2020, The Curious Case of Neural Text Degeneration. The likeliest token always stays.
    """
    ordered, order = scores.sort(descending=False)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    outside[-1] = False
    return torch.zeros_like(outside).index_copy(0, order, outside)
