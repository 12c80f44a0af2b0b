"""What is remembered of a loaded model's tower on a card, and the fingerprint under which it is kept.

Apart from `profiling`, which makes profiles: loading a model must not wait for what only that needs.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from mmswap.card import Card, SimulatedCard
from mmswap.swap.experience import Experience
from mmswap.swap.profile import fingerprint, recall


def experience_of(model: Any, card: Card) -> Experience:
    """What is known of a loaded model's tower on a card: the cached profile, if any, and what its real runs taught."""
    known = fingerprint_of(model.config, model.dtype, model.config._attn_implementation, name_of(card))
    return Experience(known, recall(known))


def name_of(card: Card) -> str:
    """A card as a fingerprint names it; simulated ones are alike, whatever their size."""
    return "simulated" if isinstance(card, SimulatedCard) else card.name


def fingerprint_of(config: Any, dtype: torch.dtype, attention: str, card: str) -> str:
    """The fingerprint of a config of transformers, run in `dtype` with that attention on a card of that name."""
    return fingerprint(as_json(config), str(dtype).removeprefix("torch."), attention, card, torch.__version__)


def as_json(config: Any) -> dict[str, Any]:
    """A config as it will be read again."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return values
