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

from mmswap.llm.division import ONLY_FIRST, TOKEN_DIMENSION, OnePass, cache_of, edges, named, reach_of, token_count
from mmswap.swap.intercept import intercepted


@dataclass(slots=True)
class Chunking:
    """What happened: tokens of each pass, and the reason for that division."""

    sizes: tuple[int, ...] = ()
    reason: str = "the decoder was not called"


@dataclass(slots=True)
class Seen:
    """How far the tokens of a prompt looked ahead: see `division.reach_of`."""

    reach: Tensor | None = None
    whole: bool = True


@contextmanager
def seen_ahead(decoder: nn.Module) -> Iterator[Seen]:
    """Notes how far the tokens of the prompt look that `decoder` is given in the block."""
    seen = Seen()
    forward = decoder.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        seen.reach, seen.whole = reach_of(decoder, args, kwargs)
        return forward(*args, **kwargs)

    with intercepted(decoder, "forward", run):
        yield seen


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
        given = named(signature, args, kwargs)
        outputs = _run(decoder, forward, given, size, report)
        if last_only and isinstance(getattr(outputs, "last_hidden_state", None), Tensor):
            outputs.last_hidden_state = outputs.last_hidden_state[:, -1:]
        return outputs

    with intercepted(decoder, "forward", run):
        yield report


def _run(decoder: nn.Module, forward: Callable[..., Any], given: dict[str, Any], size: int, report: Chunking) -> Any:
    tokens = token_count(given)
    try:
        borders = edges(decoder, given, tokens, size)
    except OnePass as why:
        report.sizes, report.reason = (tokens,), f"one pass: {why}"
        return forward(**given)
    report.sizes = tuple(end - start for start, end in itertools.pairwise(borders))
    report.reason = _reason(report.sizes, size)
    if len(report.sizes) == 1:
        return forward(**given)
    _announce(cache_of(given), tokens)
    outputs = None
    for start, end in itertools.pairwise(borders):
        outputs = None  # frees the last chunk's hidden states before the next one is computed
        outputs = forward(**_slice(decoder, given, start, end, tokens))
    return outputs


def _announce(cache: Any, tokens: int) -> None:
    """Tell layers that keep a prompt and let only the answer slide (Unlimited-OCR) where it ends."""
    for layer in getattr(cache, "layers", ()):
        if hasattr(layer, "set_prefill_length"):
            layer.set_prefill_length(tokens)


def _reason(sizes: tuple[int, ...], size: int) -> str:
    if len(sizes) == 1 and sizes[0] <= size:
        return f"one pass: {sizes[0]} tokens fit into a chunk of {size}"
    if len(sizes) == 1:
        return "one pass: all tokens look at each other"
    if max(sizes) > size:
        return f"{len(sizes)} chunks, the largest of {max(sizes)} tokens: tokens that look at each other stay together"
    return f"{len(sizes)} chunks of at most {size} tokens"


def _slice(decoder: nn.Module, given: dict[str, Any], start: int, end: int, tokens: int) -> dict[str, Any]:
    """The decoder's arguments for the tokens from `start` to `end`, those before them being in the cache."""
    piece = dict(given)
    for name, value in given.items():
        if name in TOKEN_DIMENSION and isinstance(value, Tensor):
            piece[name] = value.narrow(TOKEN_DIMENSION[name], start, end - start)
        elif name in TOKEN_DIMENSION and isinstance(value, tuple):
            piece[name] = tuple(part.narrow(TOKEN_DIMENSION[name], start, end - start) for part in value)
        elif name in ONLY_FIRST and start > 0:
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
        kept = {kind: _kept(decoder, cache_of(given), kind, start) for kind in mask}
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
    return int(layer.get_mask_sizes(0)[0]) if hasattr(layer, "get_mask_sizes") else start
