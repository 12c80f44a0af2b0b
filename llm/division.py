"""Where a prompt may be cut for its prefill, read from the arguments of the decoder's forward. Knows the vocabulary of
decoder arguments in transformers, and no architecture.

`edges(decoder, given, tokens, size)` for a decoder that is about to run; `look_ahead(...)` for one that is not: what it
will hold, and how large its largest pass is going to be.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

# Which dimension of an argument counts tokens. What is not listed here and holds a tensor prevents chunking.
TOKEN_DIMENSION = {
    "inputs_embeds": 1,
    "input_ids": 1,
    "position_ids": -1,
    "cache_position": 0,
    "visual_pos_masks": 1,
    "per_layer_inputs": 1,
    "cross_attention_mask": 2,
    "full_text_row_masked_out_mask": 2,
}
ONLY_FIRST = ("cross_attention_states",)  # their keys are in the cache after the first chunk
_MASKS = ("attention_mask", "cross_attention_mask", "full_text_row_masked_out_mask")
_ROWS = 256  # of a mask at once: indices take eight times a mask's own bytes
_SPECIAL = ("attention_mask", "deepstack_visual_embeds", *ONLY_FIRST)


_WHOLE: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class OnePass(Exception):
    """Chunking is not possible; the message says why."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a decoder is about to be given.

    Attributes:
        held: bytes of it: embeddings, masks, positions; they stay until the last chunk is through.
        extra: arguments that a dry run of one chunk needs besides: what cross attention looks at.
        tokens: of the prompt. reach: for each the furthest one that must be in the same chunk (None: none ahead).
        whole: the prompt goes in one pass, whatever the chunk.
        masks: those of a single pass, without their contents.
        unknown: why only the embeddings are counted, where the way there was not understood.
    """

    held: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    reach: Tensor | None = None
    whole: bool = False
    masks: Mapping[str, Any] = field(default_factory=dict)
    unknown: str = ""

    def largest(self, size: int, tokens: int) -> int:
        """Tokens of the largest pass of a prompt of `tokens` where at most `size` are asked for."""
        if tokens <= size or self.whole:
            return tokens
        edges = _legal_edges(self.reach, tokens, size)
        return max(end - start for start, end in itertools.pairwise(edges))


def look_ahead(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], apart: Any) -> Ahead:
    """What is known of a prefill from the arguments of `decoder.forward`, before it runs.

    Args:
        apart: a tree of tensors that are counted elsewhere (image features).
    """
    given = named(inspect.signature(decoder.forward), args, kwargs)
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in _tensors(given)}
    held = sum(storages.values()) - sum(
        storages.get(cdata, 0) for cdata in {one.untyped_storage()._cdata for one in _tensors(apart)}
    )
    extra = {name: given[name] for name in ONLY_FIRST if isinstance(given.get(name), Tensor)}
    masks = {name: _shapes(given[name]) for name in _MASKS if any(mask.ndim == 4 for mask in _tensors(given.get(name)))}
    tokens = token_count(given)
    try:
        edges(decoder, given, tokens, 1)
        reach = _reach(given.get("attention_mask"), tokens)
        return Ahead(held, extra, tokens, reach, reach is None and _looks_both_ways(decoder), masks)
    except OnePass:
        return Ahead(held, extra, tokens, None, True, masks)


def reach_of(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, bool]:
    """(how far tokens look ahead, as in `Ahead.reach`; whether all look at all, or at what is not known)."""
    given = named(inspect.signature(decoder.forward), args, kwargs)
    try:
        reach = _reach(given.get("attention_mask"), token_count(given))
    except OnePass:
        return None, True
    return reach, reach is None and _looks_both_ways(decoder)


def _shapes(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: torch.empty_like(tensor, device="meta"), tree)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def named(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs).arguments
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound.update(bound.pop(name, {}))
    return dict(bound)


def token_count(given: dict[str, Any]) -> int:
    for name in ("inputs_embeds", "input_ids"):
        if isinstance(given.get(name), Tensor):
            return int(given[name].shape[1])
    return 0


def keep_whole(decoder: nn.Module, why: str) -> None:
    """Never divide a prompt of this decoder; `why` follows "one pass:"."""
    _WHOLE[decoder] = why


def edges(decoder: nn.Module, given: dict[str, Any], tokens: int, size: int) -> list[int]:
    """The borders of the chunks, 0 and `tokens` included."""
    if tokens <= size:
        return [0, tokens]
    cache = cache_of(given)
    if cache is None:
        raise OnePass("the decoder was given no cache that another chunk could read")
    if decoder in _WHOLE:
        raise OnePass(_WHOLE[decoder])
    try:
        seen = cache.get_seq_length()
    except ValueError:  # so transformers answers where no layer keeps keys
        raise OnePass("its cache does not count tokens") from None
    if seen:
        raise OnePass("the cache is not empty")
    for name, value in given.items():
        if name in TOKEN_DIMENSION and isinstance(value, (Tensor, tuple)):
            _check_dimension(name, value, tokens)
        elif name not in _SPECIAL and _holds_tensor(value):
            raise OnePass(f"the decoder is given {name}, and which part of it belongs to which token is not known")
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
        if part.shape[TOKEN_DIMENSION[name]] != tokens:
            raise OnePass(f"{name} has shape {tuple(part.shape)} for {tokens} tokens")


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() > 1
    if isinstance(value, dict):
        return any(_holds_tensor(part) for part in value.values())
    return isinstance(value, (list, tuple)) and any(_holds_tensor(part) for part in value)


def cache_of(given: dict[str, Any]) -> Any:
    return next((value for value in given.values() if hasattr(value, "get_seq_length")), None)


def _reach(mask: Any, tokens: int) -> Tensor | None:
    """For each token the furthest token that any token up to it looks at (None: nobody looks ahead)."""
    masks = [part for part in (mask.values() if isinstance(mask, dict) else (mask,)) if part is not None]
    reach = None
    for part in masks:
        if not isinstance(part, Tensor) or part.ndim not in (2, 4):
            raise OnePass(f"an attention mask of the kind {type(part).__name__} cannot be divided")
        if part.ndim == 2:
            continue
        if part.shape[-2:] != (tokens, tokens):
            raise OnePass(f"an attention mask has shape {tuple(part.shape)} for {tokens} tokens")
        furthest = torch.cat([_furthest(part[0, :, start : start + _ROWS]) for start in range(0, tokens, _ROWS)])
        furthest = furthest.cummax(0).values.cpu()
        reach = furthest if reach is None else torch.maximum(reach, furthest)
    return reach


def _furthest(rows: Tensor) -> Tensor:
    """The last column that each row `[heads, rows, columns]` of a mask allows."""
    allowed = rows.any(0) if rows.dtype == torch.bool else (rows > torch.finfo(rows.dtype).min / 2).any(0)
    places = torch.arange(rows.shape[-1], device=rows.device)
    return torch.where(allowed, places, -1).amax(-1)


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
