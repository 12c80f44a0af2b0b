"""A model's lean step: built from one token that was seen, and kept only if its numbers are the model's own.

`lean = open_lean(model)` takes a few tokens of text through the model, reads its parts on the way, and compares. It
raises `Refused` with the reason for a model that keeps its own forward.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.llm.division import cache_of
from mmswap.llm.fast.blocks import Block, blocks_of
from mmswap.llm.fast.linear import linear_of
from mmswap.llm.fast.norm import Norm, close, norm_of
from mmswap.llm.fast.refused import Refused
from mmswap.llm.fast.rope import Ropes
from mmswap.llm.fast.sighting import Call, Sighting, seen
from mmswap.llm.fast.step import LeanStep, Tail
from mmswap.llm.parts import Parts, find_parts
from mmswap.llm.request import ODD, RequestState, first_inputs, next_inputs, prepare

_APART = "its parts could not be run one by one"
PROMPT, STEPS = 6, 3
LOOSE = {torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 1.5e-1}
"""Largest difference of logits, relative to the largest logit, that rounding through many layers may leave."""


@dataclass(slots=True)
class _Ends:
    """The calls of what stands around the layers."""

    embeddings: list[Call] = field(default_factory=list)
    head: list[Call] = field(default_factory=list)


def open_lean(model: Any) -> LeanStep:
    """The lean step of a model that is in its place and whole.

    Raises:
        Refused: a part is not understood, or the numbers are not the model's; the message is a clause for "because".
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise Refused("it is an encoder and a decoder")
    parts = find_parts(model)
    state = RequestState(model)
    with torch.no_grad(), state.watching():
        return _opened(model, parts)


@contextmanager
def _running(what: str = "a few tokens of text could not be taken through it") -> Iterator[None]:
    """Code that may stumble over this model: its own, which has wishes about prompts, or ours, which takes it apart."""
    try:
        yield
    except ODD as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Refused(f"{what}: {lines[0]}") from error


def _opened(model: Any, parts: Parts) -> LeanStep:
    table: Any = parts.embeddings.weight
    ids = _harmless(model, int(table.shape[0]), PROMPT + STEPS)
    prompt = torch.tensor([ids[:PROMPT]], device=table.device)
    with _running():
        prepared = prepare(model, {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}, STEPS + 1)
        outputs = prepared.model(**first_inputs(prepared), return_dict=True)
    lean: LeanStep | None = None
    for step, token in enumerate(ids[PROMPT:]):
        with _running():
            given = next_inputs(prepared, outputs, token)
        cache = cache_of(given)
        if step == 0:
            if cache is None:
                raise Refused("its cache is of an unknown kind")
            copied = copy.deepcopy(cache)
            layers = [layer for _, layer in parts.layers]
            with seen(parts.decoder, layers) as sighting, _ends(parts) as ends, _running():
                outputs = prepared.model(**given, return_dict=True)
            with _running(_APART):
                lean = _read(parts, sighting, ends, outputs.logits[:, -1:], model.config)
                running = lean.begin(copied, lean.seen_at)
        else:
            with _running():
                outputs = prepared.model(**given, return_dict=True)
        assert lean is not None
        with _running(_APART):
            found = lean(token, running)
        _compare(found, outputs.logits[0, -1], step)
    assert lean is not None
    return lean


def off(given: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest number among those wanted."""
    return float((given.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1e-30))


def _compare(given: Tensor, wanted: Tensor, step: int) -> None:
    worst = off(given, wanted)
    if not worst <= LOOSE.get(wanted.dtype, 0.0):
        raise Refused(f"its numbers came out differently: {worst:.1e} of the largest logit at token {step + 1}")


def _harmless(model: Any, vocabulary: int, count: int) -> list[int]:
    """Ids that stand for nothing but text."""
    special: set[int] = set()
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index")):
                special |= set(value if isinstance(value, (list, tuple)) else [value])
    found = [token for token in range(min(vocabulary // 3, 1000), vocabulary) if token not in special]
    return (found * count)[: count * 7 : 7] if len(found) >= count * 7 else (found * count)[:count]


@contextmanager
def _ends(parts: Parts) -> Iterator[_Ends]:
    ends = _Ends()
    with ExitStack() as stack:
        for module, calls in ((parts.embeddings, ends.embeddings), (parts.head, ends.head)):
            stack.callback(module.register_forward_hook(_noter(calls), with_kwargs=True).remove)
        yield ends


def _noter(calls: list[Call]) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.append(Call(module, args, kwargs, output))

    return note


def _read(parts: Parts, sighting: Sighting, ends: _Ends, logits: Tensor, config: Any) -> LeanStep:
    layers = sighting.layers
    if [call.module for call in layers] != [layer for _, layer in parts.layers]:
        raise Refused("its layers did not run once each in their order")
    for one, other in itertools.pairwise(layers):
        if not close(other.given, one.result):
            raise Refused("something stands between its layers")
    ropes = _used(sighting)
    blocks: list[Block] = []
    for call in layers:
        blocks += blocks_of(call, sighting, ropes)
    if len(ends.embeddings) != 1 or len(ends.head) != 1:
        raise Refused("its embeddings or its head ran more than once for one token")
    scale = _scale(ends.embeddings[0].result, layers[0].given)
    norm = _final(sighting, ends.head[0], layers[-1].result)
    head, tail = linear_of(ends.head[0]), _tail(ends.head[0], logits, config)
    modules = [parts.embeddings, parts.head, *(layer for _, layer in parts.layers)]
    modules += [call.module for call in sighting.norms]
    return LeanStep(parts.embeddings, scale, Ropes(ropes), blocks, norm, head, tail, modules)


def _used(sighting: Sighting) -> list[Call]:
    """The calls beside the layers whose pair a layer was given."""
    given = {id(part) for layer in sighting.layers for value in layer.kwargs.values() for part in _parts(value)}
    given |= {id(part) for layer in sighting.layers for value in layer.args for part in _parts(value)}
    return [call for call in sighting.ropes if id(call.output[0]) in given]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def _scale(embedded: Tensor, hidden: Tensor) -> float:
    """By what the embeddings are multiplied on their way to the first layer."""
    if close(hidden, embedded):
        return 1.0
    at = int(embedded.abs().argmax())
    scale = float(hidden.flatten()[at] / embedded.flatten()[at])
    if not close(hidden, embedded * scale):
        raise Refused("something is added between its embeddings and its layers")
    return scale


def _final(sighting: Sighting, head: Call, hidden: Tensor) -> Norm | None:
    """The norm between the last layer and the head, if there is one."""
    norm, result = None, hidden
    for call in sighting.norms:
        if call.given.shape == hidden.shape and close(call.given, hidden):
            norm, result = norm_of(call.module, call.given), call.result
    if not close(head.given[:, -1:], result[:, -1:]):
        raise Refused("something stands between its last norm and its head")
    return norm


def _tail(head: Call, logits: Tensor, config: Any) -> Tail | None:
    """What is done to the head's numbers: nothing, a soft cap, a factor."""
    plain = head.result[:, -1:]
    text = config.get_text_config(decoder=True)
    cap = getattr(text, "final_logit_softcapping", None)
    tails: list[Tail | None] = [None]
    if cap:
        tails.append(lambda x: torch.tanh(x / cap) * cap)
    if isinstance(factor := getattr(text, "logit_scale", None), float):
        tails.append(lambda x: x * factor)
    for tail in tails:
        if close((plain if tail is None else tail(plain)).to(logits.dtype), logits):
            return tail
    raise Refused("its head's numbers are changed before they are given out")
