"""Features of single pictures put together to those of one call. Knows no architecture: a template's shapes decide.

The template is what the tower would return for all pictures at once (fake or meta tensors will do): whether a list
grows by one entry a picture, or keeps its length while its tensors grow, shows in the shapes and nowhere else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class CannotMerge(Exception):
    """The pictures' features do not add up to the template."""


def merge(template: Any, pieces: Sequence[Any]) -> Any:
    """One feature tree from `pieces` (a tree a picture, in order), shaped like `template`.

    Raises:
        CannotMerge: no concatenation along one dimension or of the lists gives the template's shapes.
    """
    if isinstance(template, torch.Tensor):
        return _merge_tensors(template, pieces)
    if isinstance(template, Mapping):
        merged = copy.copy(pieces[0])
        for key in template:
            merged[key] = merge(template[key], [piece[key] for piece in pieces])
        return merged
    if isinstance(template, (list, tuple)):
        return _merge_lists(template, pieces)
    if all(piece == pieces[0] for piece in pieces):
        return pieces[0]
    raise CannotMerge(f"{template!r} differs from picture to picture")


def _merge_tensors(template: torch.Tensor, pieces: Sequence[Any]) -> torch.Tensor:
    if not all(isinstance(piece, torch.Tensor) and piece.ndim == template.ndim > 0 for piece in pieces):
        raise CannotMerge("a tensor stands where a picture has none")
    for dimension, length in enumerate(template.shape):
        others = {(*piece.shape[:dimension], length, *piece.shape[dimension + 1 :]) for piece in pieces}
        if others == {tuple(template.shape)} and sum(piece.shape[dimension] for piece in pieces) == length:
            return torch.cat(list(pieces), dimension)
    raise CannotMerge(f"{[tuple(piece.shape) for piece in pieces]} do not make {tuple(template.shape)}")


def _merge_lists(template: Sequence[Any], pieces: Sequence[Sequence[Any]]) -> Any:
    kind = list if isinstance(template, list) else tuple
    if all(len(piece) == len(template) for piece in pieces):
        try:
            return kind(merge(entry, [piece[i] for piece in pieces]) for i, entry in enumerate(template))
        except CannotMerge:
            pass
    entries = [entry for piece in pieces for entry in piece]
    if len(entries) != len(template):
        raise CannotMerge(f"{len(entries)} entries do not make {len(template)}")
    return kind(merge(slot, [entry]) for slot, entry in zip(template, entries))
