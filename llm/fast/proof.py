"""Whether several sequences at once come out as each does alone: tried before anybody relies on it. Knows no model.

why = cannot_batch(lean, open_cache, far=4096)           # None: they do
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmswap.llm.fast.norm import close
from mmswap.llm.fast.opening import LOOSE, off
from mmswap.llm.fast.rope import Ropes
from mmswap.llm.fast.rows import Rows
from mmswap.llm.fast.state import State
from mmswap.llm.fast.step import LeanStep

OpenCache = Callable[[int], Any]

LENGTHS = (2, 1, 3)  # of the sequences that are tried, in tokens


@torch.no_grad()
def cannot_batch(lean: LeanStep, open_cache: OpenCache, far: int) -> str | None:
    """Why sequences are decoded one after the other, a clause for "because"; None if they need not be.

    Args:
        open_cache: an empty cache with room for so many tokens, or None where it is the model's own.
        far: a position near the end of the context.
    """
    caches = [open_cache(max(LENGTHS) + 1) for _ in range(2 * len(LENGTHS))]
    if any(cache is None for cache in caches):
        return "its cache is transformers' own"
    try:
        if not _apart(lean.ropes, lean, far):
            return "the angles of a token depend on the positions of others beside it"
        return _compared(lean, caches)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"a batch could not be taken through it: {error}"


def _compared(lean: LeanStep, caches: list[Any]) -> str | None:
    alone, together = _begun(lean, caches[: len(LENGTHS)]), _begun(lean, caches[len(LENGTHS) :])
    tokens = [10 + length for length in LENGTHS]
    given = lean.together(tokens, Rows(together))
    for token, state, row in zip(tokens, alone, given):
        wanted = lean(token, state)
        worst = off(row, wanted)
        if not worst <= LOOSE.get(wanted.dtype, 0.0):
            return f"its numbers came out differently in a batch: {worst:.1e} of the largest logit"
    return None


def _begun(lean: LeanStep, caches: list[Any]) -> list[State]:
    states = []
    for length, cache in zip(LENGTHS, caches):
        state = lean.begin(cache, 0)
        for token in range(1, length + 1):
            lean(token, state)
        states.append(state)
    return states


def _apart(ropes: Ropes, lean: LeanStep, far: int) -> bool:
    """Whether the pairs of two tokens are those of each alone, also where one of them stands far behind."""
    for places in ((1, far), (far, 1)):
        at = torch.tensor(places, dtype=torch.int32, device=lean.device).view(2, 1)
        h = lean.embedded(torch.ones_like(at))
        both = ropes.at(h, at)
        for index in range(2):
            for whole, one in zip(both, ropes.at(h[index : index + 1], at[index : index + 1])):
                for rows, row in zip(whole, one):
                    if rows.shape[0] != 2 or not close(rows[index : index + 1], row):
                        return False
    return True
