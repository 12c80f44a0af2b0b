"""What reading a prompt takes: bytes of one prefill step, and of the KV cache, by dry runs of the decoder.

cost_of = prefill_cost(dry_run, "model.language_model", layers, groups, caching);  cost_of(chunk, tokens, ahead)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmswap.config import SMALLEST_CHUNK
from mmswap.llm.division import Ahead
from mmswap.llm.kv.caching import Caching
from mmswap.llm.kv.kinds import KINDS
from mmswap.llm.kv.layout import KvLayout
from mmswap.llm.kv.shapes import layout_of
from mmswap.swap.dry_run import DryRun
from mmswap.swap.peak import Peak
from mmswap.swap.replay import ARENA

STEP = 64


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Bytes of one prefill step beside the KV cache (`peak`), and of the cache that holds so many tokens (`kv`).

    `layer_per_token`: what one layer copies for each token that it holds, when it grows or is read.
    """

    peak: int
    kv: Callable[[int], int]
    layer_per_token: int = 0


CostOf = Callable[[int, int, Ahead], PrefillCost]
"""`(chunk, tokens, ahead) -> cost` of a prefill of `tokens` in steps of `chunk`."""


def prefill_cost(dry_run: DryRun, decoder: str, layers: int, groups: int, caching: Caching | None = None) -> CostOf:
    """What dry runs of `decoder` (its dotted path, with `layers` layers) say.

    A step of a longer prompt also reads the cache so far: one layer's keys and values are copied when they grow, they
    are repeated for the `groups` of query heads that share them, and the mask has a row of `tokens` for each token.

    Args:
        caching: how keys and values are kept; without it, by transformers, in the model's dtype.
    """
    ours = caching.survey.own if caching is not None and caching.survey is not None else {}
    kind = caching.kind if caching is not None else KINDS["fp16"]
    copies = 2 if ours and kind.quantised else 1  # in float32 on their way to 16 bits
    layouts: dict[Any, KvLayout | None] = {}

    def layout(extra: Mapping[str, Any]) -> KvLayout | None:
        key = tuple((name, tuple(value.shape)) for name, value in sorted(extra.items()))
        if key not in layouts:
            layouts[key] = layout_of(dry_run, decoder, ours, extra=extra)
        return layouts[key]

    def own(chunk: int, **arguments: Any) -> int:
        step = dry_run.prefill_peak(decoder, chunk, **arguments)
        return max(0, _counted(step.peak).total - step.kv_bytes)

    def cost_of(chunk: int, tokens: int, ahead: Ahead) -> PrefillCost:
        masks = ahead.masks if chunk == ahead.tokens else {}
        if masks:
            step = own(chunk, **ahead.extra, **masks)
        else:
            step = between_powers(chunk, lambda size: own(size, **ahead.extra))
        one, two = (dry_run.prefill_peak(decoder, n * SMALLEST_CHUNK, **ahead.extra) for n in (1, 2))
        layer = -(-(two.kv_bytes - one.kv_bytes) // SMALLEST_CHUNK // layers)
        held = layout(ahead.extra)
        step += (tokens - chunk) * ((copies + groups) * layer + 4 * chunk)
        return PrefillCost(step, partial(held.nbytes, kind=kind) if held is not None else nothing, copies * layer)

    return cost_of


def nothing(tokens: int) -> int:
    """The dry run could not tell."""
    return 0


def query_groups(config: Any) -> int:
    """How many query heads share a key head, by the config of a language model."""
    heads = getattr(config, "num_attention_heads", None) or 1
    return max(1, heads // (getattr(config, "num_key_value_heads", None) or heads))


def between_powers(size: int, cost: Callable[[int], int]) -> int:
    """`cost(size)` or a little more, from its values at powers of two alone: a convex curve lies below its chords.

    Prompts have a thousand lengths, and each would cost a dry run of its own. Steps of 64 tokens are taken whole, for
    linear attention pads to them.
    """
    high = power_above(size)
    if high <= STEP:
        return cost(high)
    size = -(-size // STEP) * STEP
    if size == high:
        return cost(size)
    below, above = cost(high // 2), cost(high)
    return max(below, below - (below - above) * (size - high // 2) // (high // 2))


def _counted(peak: Peak) -> Peak:
    """A simulated card counts tensors; what the host's kernels take inside one op is no affair of its."""
    return peak.lasting() if peak.policy is ARENA else peak


def power_above(tokens: int) -> int:
    """The smallest chunk that holds `tokens`, of those that are tried."""
    power = SMALLEST_CHUNK
    while power < tokens:
        power *= 2
    return power
