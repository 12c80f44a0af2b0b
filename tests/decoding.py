"""Greedy answers of a tiny model, by transformers' own `generate()` and by ours: for tests that compare the two."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.llm.decode import Generation, generate
from mmswap.llm.kv.caching import decide
from mmswap.vision.tower import find_tower

END = 100_000  # never emitted
NEW = 12


def unpatched(model: Any, inputs: dict[str, Tensor], **more: Any) -> list[int]:
    """The ids of transformers' own greedy answer, up to the end id."""
    given = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=END, **more)[0].tolist()
    new = ids[1:] if model.config.is_encoder_decoder else ids[given:]
    return new[: new.index(END)] if END in new else new


def start(model: Any, inputs: dict[str, Tensor], chunk: int = 2048, **more: Any) -> Generation:
    """Our answer; pictures are encoded beforehand and replayed, as the runtime does."""
    replay = None
    if any("pixel" in name for name in inputs):
        tower = find_tower(model)
        replay = functools.partial(tower.replay, tower.run(tower.call_for(inputs)))
    settings = {"sampling": SamplingConfig(max_new_tokens=NEW), "end_ids": frozenset({END}), "context": 512, **more}
    settings.setdefault("caching", decide(model, "auto"))
    return generate(model, inputs, prefill_chunk=chunk, replay=replay, **settings)


def ours(model: Any, inputs: dict[str, Tensor], chunk: int = 2048, **more: Any) -> list[int]:
    return [token.id for token in start(model, inputs, chunk, **more)]
