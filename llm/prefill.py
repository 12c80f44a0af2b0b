"""Prefill in chunks: the decoder's forward, run piece by piece over one prompt. Knows the vocabulary of decoder
arguments in transformers, and no architecture.

`with chunked(decoder, size) as report: outputs = model(**inputs)` leaves the model's own forward as it is around the
decoder: merging of pictures before it, head and soft cap after it. Where a boundary would cut tokens that look at each
other both ways it is moved; where an argument is not understood the prompt goes in one pass, and the report says why.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.swap.intercept import intercepted

# Which dimension of an argument counts tokens. What is not listed here and holds a tensor prevents chunking.
_TOKEN_DIMENSION = {
    "inputs_embeds": 1,
    "input_ids": 1,
    "position_ids": -1,
    "cache_position": 0,
    "visual_pos_masks": 1,
    "per_layer_inputs": 1,
    "cross_attention_mask": 2,
    "full_text_row_masked_out_mask": 2,
}
_ONLY_FIRST = ("cross_attention_states",)  # their keys are in the cache after the first chunk
_SPECIAL = ("attention_mask", "deepstack_visual_embeds", *_ONLY_FIRST)


@dataclass(slots=True)
class Chunking:
    """What happened: tokens of each pass, and the reason for that division."""

    sizes: tuple[int, ...] = ()
    reason: str = "the decoder was not called"


class _OnePass(Exception):
    """Chunking is not possible; the message says why."""


@contextmanager
def chunked(decoder: nn.Module, size: int, *, last_only: bool = False) -> Iterator[Chunking]:
    """Run `decoder.forward` in chunks of at most `size` tokens inside the block.

    Args:
        decoder: the module that takes `inputs_embeds` and holds the layers.
        size: tokens of one pass.
        last_only: hand on the hidden state of the last token alone, for a model that cannot be told to keep one logit.
    """
    report = Chunking()
    forward = decoder.forward
    signature = inspect.signature(forward)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = _named(signature, args, kwargs)
        outputs = _run(decoder, forward, given, size, report)
        if last_only and isinstance(getattr(outputs, "last_hidden_state", None), Tensor):
            outputs.last_hidden_state = outputs.last_hidden_state[:, -1:]
        return outputs

    with intercepted(decoder, "forward", run):
        yield report


def _named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs).arguments
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(bound.pop(name, {}))
    return dict(bound)


def _run(decoder: nn.Module, forward: Callable[..., Any], given: dict[str, Any], size: int, report: Chunking) -> Any:
    tokens = _token_count(given)
    try:
        edges = _edges(decoder, given, tokens, size)
    except _OnePass as why:
        report.sizes, report.reason = (tokens,), f"one pass: {why}"
        return forward(**given)
    report.sizes = tuple(end - start for start, end in itertools.pairwise(edges))
    report.reason = _reason(report.sizes, size)
    if len(report.sizes) == 1:
        return forward(**given)
    outputs = None
    for start, end in itertools.pairwise(edges):
        outputs = None  # frees the last chunk's hidden states before the next one is computed
        outputs = forward(**_slice(decoder, given, start, end, tokens))
    return outputs


def _reason(sizes: tuple[int, ...], size: int) -> str:
    if len(sizes) == 1 and sizes[0] <= size:
        return f"one pass: {sizes[0]} tokens fit into a chunk of {size}"
    if len(sizes) == 1:
        return "one pass: all tokens look at each other"
    if max(sizes) > size:
        return f"{len(sizes)} chunks, the largest of {max(sizes)} tokens: tokens that look at each other stay together"
    return f"{len(sizes)} chunks of at most {size} tokens"


def _token_count(given: dict[str, Any]) -> int:
    for name in ("inputs_embeds", "input_ids"):
        if isinstance(given.get(name), Tensor):
            return int(given[name].shape[1])
    return 0


def _edges(decoder: nn.Module, given: dict[str, Any], tokens: int, size: int) -> list[int]:
    """The borders of the chunks, 0 and `tokens` included."""
    if tokens <= size:
        return [0, tokens]
    cache = _cache(given)
    if cache is None:
        raise _OnePass("the decoder was given no cache that another chunk could read")
    if cache.get_seq_length():
        raise _OnePass("the cache is not empty")
    for name, value in given.items():
        if name in _TOKEN_DIMENSION and isinstance(value, (Tensor, tuple)):
            _check_dimension(name, value, tokens)
        elif name not in _SPECIAL and _holds_tensor(value):
            raise _OnePass(f"the decoder is given {name}, and which part of it belongs to which token is not known")
    reach = _reach(given.get("attention_mask"), tokens)
    if reach is None and _looks_both_ways(decoder):
        return [0, tokens]
    return _legal_edges(reach, tokens, size)


def _looks_both_ways(decoder: nn.Module) -> bool:
    """The decoder makes its own masks, and not causal ones."""
    config = getattr(decoder, "config", None)
    return not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", None) in (
        True,
        "all",
    )


def _check_dimension(name: str, value: Any, tokens: int) -> None:
    for part in value if isinstance(value, tuple) else (value,):
        if part.shape[_TOKEN_DIMENSION[name]] != tokens:
            raise _OnePass(f"{name} has shape {tuple(part.shape)} for {tokens} tokens")


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() > 1
    if isinstance(value, dict):
        return any(_holds_tensor(part) for part in value.values())
    return isinstance(value, (list, tuple)) and any(_holds_tensor(part) for part in value)


def _cache(given: dict[str, Any]) -> Any:
    return next((value for value in given.values() if hasattr(value, "get_seq_length")), None)


def _reach(mask: Any, tokens: int) -> Tensor | None:
    """For each token the furthest token that any token up to it looks at (None: nobody looks ahead)."""
    masks = [part for part in (mask.values() if isinstance(mask, dict) else (mask,)) if part is not None]
    reach = None
    for part in masks:
        if not isinstance(part, Tensor) or part.ndim not in (2, 4):
            raise _OnePass(f"an attention mask of the kind {type(part).__name__} cannot be divided")
        if part.ndim == 2:
            continue
        if part.shape[-2:] != (tokens, tokens):
            raise _OnePass(f"an attention mask has shape {tuple(part.shape)} for {tokens} tokens")
        allowed = part[0].any(0) if part.dtype == torch.bool else (part[0] > torch.finfo(part.dtype).min / 2).any(0)
        places = torch.arange(tokens, device=part.device)
        furthest = torch.where(allowed, places, -1).amax(-1).cummax(0).values.cpu()
        reach = furthest if reach is None else torch.maximum(reach, furthest)
    return reach


def _legal_edges(reach: Tensor | None, tokens: int, size: int) -> list[int]:
    """Greedy: the largest legal step of at most `size`, else the smallest legal one beyond it."""
    if reach is None:
        return [*range(0, tokens, size), tokens]
    legal = [end for end in range(1, tokens) if int(reach[end - 1]) < end] + [tokens]
    edges = [0]
    while edges[-1] < tokens:
        ahead = [end for end in legal if end > edges[-1]]
        within = [end for end in ahead if end - edges[-1] <= size]
        edges.append(within[-1] if within else ahead[0])
    return edges


def _slice(decoder: nn.Module, given: dict[str, Any], start: int, end: int, tokens: int) -> dict[str, Any]:
    """The decoder's arguments for the tokens from `start` to `end`, those before them being in the cache."""
    piece = dict(given)
    for name, value in given.items():
        if name in _TOKEN_DIMENSION and isinstance(value, Tensor):
            piece[name] = value.narrow(_TOKEN_DIMENSION[name], start, end - start)
        elif name in _TOKEN_DIMENSION and isinstance(value, tuple):
            piece[name] = tuple(part.narrow(_TOKEN_DIMENSION[name], start, end - start) for part in value)
        elif name in _ONLY_FIRST and start > 0:
            piece[name] = None
    piece["attention_mask"] = _slice_mask(decoder, given, start, end)
    if given.get("deepstack_visual_embeds") is not None:
        piece.update(_slice_deepstack(given, start, end))
    return piece


def _slice_deepstack(given: dict[str, Any], start: int, end: int) -> dict[str, Any]:
    """The added features of the picture tokens within the chunk; without any, neither mask nor features."""
    seen = given["visual_pos_masks"]
    first, count = int(seen[:, :start].sum()), int(seen[:, start:end].sum())
    if count == 0:
        return {"deepstack_visual_embeds": None, "visual_pos_masks": None}
    features = [layer[first : first + count] for layer in given["deepstack_visual_embeds"]]
    return {"deepstack_visual_embeds": features, "visual_pos_masks": seen[:, start:end]}


def _slice_mask(decoder: nn.Module, given: dict[str, Any], start: int, end: int) -> Any:
    mask = given.get("attention_mask")
    if isinstance(mask, dict):
        if all(part is None for part in mask.values()):
            return None  # the decoder makes causal ones for the chunk by itself
        device = given["inputs_embeds"].device
        kept = {kind: _kept(decoder, _cache(given), kind, start) for kind in mask}
        return {kind: _piece(part, start, end, kept[kind], device) for kind, part in mask.items()}
    if mask is None or mask.ndim == 2:
        return mask if mask is None else mask[:, :end]
    return _piece(mask, start, end, start, mask.device)


def _piece(mask: Tensor | None, start: int, end: int, kept: int, device: torch.device) -> Tensor:
    """Rows `start:end`, and the columns of the `kept` keys before them and of themselves."""
    if mask is None:
        rows, columns = torch.arange(start, end, device=device), torch.arange(start - kept, end, device=device)
        return (columns[None, :] <= rows[:, None])[None, None]
    return mask[:, :end] if mask.ndim == 2 else mask[:, :, start:end, start - kept : end]


def _kept(decoder: nn.Module, cache: Any, kind: str, start: int) -> int:
    """How many keys the layers of this kind still hold of the `start` tokens before the chunk (sliding ones forget)."""
    kinds = getattr(decoder.config, "layer_types", None) or []
    if kind not in kinds or start == 0:
        return start
    layer = cache.layers[kinds.index(kind)]
    keys = getattr(layer, "keys", None)
    return int(keys.shape[-2]) if isinstance(keys, Tensor) else start
