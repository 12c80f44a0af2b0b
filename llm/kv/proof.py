"""Whether a model can go on where an earlier prompt, or a chunk of one, ended: tried with a few tokens of text, not
assumed.

    why = cannot_go_on(model, caching)         # None: it can; else why not, half a sentence
    why = cannot_be_parted(model, open_cache)  # the same for the chunks of a prompt

A model whose words see the words behind them, or one that counts positions by itself from nought, would answer
otherwise than if it had read all. Pictures have no part in this: their shift of positions is the request's own state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from mmswap.llm.kv.caching import Caching
from mmswap.llm.kv.kinds import kv_kind
from mmswap.llm.parts import find_parts
from mmswap.llm.prefill import chunked
from mmswap.llm.request import ODD, RequestState, first_inputs, later_inputs, prepare

TOKENS, FIRST = 12, 7
LOOSE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}
"""Largest difference of logits, over the largest logit, that another order of the same sums may leave."""


@torch.no_grad()
def cannot_go_on(model: Any, caching: Caching) -> str | None:
    """None if logits behind text that is read in two parts are those of text that is read at once."""
    if caching.survey is None:
        return "its keys and values lie in transformers' own cache"
    if caching.survey.crossing:
        return "it keeps a picture's keys beside the text's"
    exact = replace(caching, kind=kv_kind("auto", find_parts(model).embeddings.weight.dtype))
    try:
        whole, parted = _read(model, exact.open, TOKENS), _parted(model, exact)
    except ODD as error:
        return f"it could not be tried ({error})"
    return _differ(whole, parted)


@torch.no_grad()
def cannot_be_parted(model: Any, open_cache: Callable[[int], Any]) -> str | None:
    """None if a prompt may be read in chunks. Asked of recurrent layers alone: some begin anew with every chunk."""
    if not _recurrent(find_parts(model).decoder.config):
        return None
    try:
        whole, parted = (_read(model, open_cache, size) for size in (TOKENS, FIRST))
    except ODD as error:
        return f"it could not be tried ({error})"
    return _differ(whole, parted)


def _recurrent(config: Any) -> bool:
    try:
        layers = DynamicCache(config=config).layers
    except Exception:  # a config that another library wrote; `unusual` says so
        return False
    return any(not isinstance(layer, CacheLayerMixin) for layer in layers)


def _differ(whole: Tensor, parted: Tensor) -> str | None:
    worst = float((whole - parted).abs().max() / whole.abs().max().clamp_min(1e-30))
    if not worst <= LOOSE.get(whole.dtype, 1e-4):
        return f"its numbers came out differently, by {worst:.1e} of the largest logit"
    return None


def _read(model: Any, open_cache: Callable[[int], Any], size: int) -> Tensor:
    """The logits behind the text, read in chunks of `size`."""
    state = RequestState(model)
    with state.watching(), chunked(find_parts(model).decoder, size):
        prepared = prepare(model, _inputs(model), 1, open_cache(TOKENS))
        found: Tensor = prepared.model(**first_inputs(prepared), return_dict=True).logits[0, -1]
    return found


def _inputs(model: Any) -> dict[str, Tensor]:
    weight: Any = find_parts(model).embeddings.weight
    ids = torch.arange(TOKENS, device=weight.device)[None] + int(weight.shape[0]) // 3
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _parted(model: Any, caching: Caching) -> Tensor:
    state, cache = RequestState(model), caching.open(TOKENS)
    inputs = _inputs(model)
    with state.watching():
        prepared = prepare(model, {name: value[:, :FIRST] for name, value in inputs.items()}, 1, cache)
        prepared.model(**first_inputs(prepared), return_dict=True)
    with state.applied():
        prepared = prepare(model, inputs, 1, cache)
        found: Tensor = prepared.model(**later_inputs(prepared, TOKENS - FIRST), return_dict=True).logits[0, -1]
    return found
