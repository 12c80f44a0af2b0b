"""From a blueprint, a card and a wish to a `Sizing`.

    sizing = size_up(Blueprint.of("folder"), room_of("sim:16GiB"), Wish(1344, 1344, context=32768))

A calculation: nothing is run and nothing is measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmswap.sizing import report
from mmswap.sizing.answer import NOT, Encoding, Sizing
from mmswap.sizing.facts import Cost, Facts
from mmswap.sizing.planner import Planner
from mmswap.sizing.room import Room
from mmswap.sizing.search import limits_of
from mmswap.sizing.wish import Wish
from mmswap.swap.peak import Peak
from mmswap.swap.replay import ARENA

if TYPE_CHECKING:
    from mmswap.blueprint import Blueprint


def size_up(model: Blueprint | Facts, room: Room, wish: Wish) -> Sizing:
    """What a model, a context and pictures take of a card, what would give way for them, and how much more would fit.

    Raises:
        OptionError: a context that the model was not made for. ContextOverflow: the pictures alone fill it.
        ModelError: a model whose parts or pictures cannot be found out from its config.
    """
    planner = Planner(model, room, wish)
    context, features = planner.context, planner.cost.features
    free = planner.free(context)
    decided, fits = planner.decide(planner.cost, context)
    chunk = planner.step(context, features) or planner.chunks(context)[-1]
    scratch = planner.reading(context, chunk)
    missing = max(0, -free, scratch + features - free)
    fits = NOT if missing else fits  # weights and prompt must fit together, whatever the tower does
    gives = free >= 0 and room.swaps and not decided.shortfall and bool(decided.evict)
    found = limits_of(planner)
    sizing = Sizing(
        model=planner.facts.name,
        dtype=planner.about.dtype,
        attention=planner.about.attention,
        card=room.name,
        kv=planner.kv.name,
        quantize=wish.quantize,
        context=context,
        total=room.total,
        free=free,
        groups={**room.held, **planner.weights.groups, report.KV: planner.cache(context)},
        kv_bytes_per_token=planner.prompt.layout.per_token(planner.kv),
        encoding=_encoding(planner.cost),
        scratch=scratch,
        step=planner.prompt.largest(context, chunk),
        fits=fits,
        need=decided.need,
        deficit=max(0, decided.need - free),
        evict=decided.evict if gives else (),
        lent=decided.lent if gives else 0,
        shortfall=missing or decided.shortfall,
        window_ms=decided.lent / room.link_rate * 1e3 if gives else 0.0,
        link_rate=room.link_rate,
        limits=found.limits,
        reasons=(),
        swaps=room.swaps,
        doubt=_doubt(planner),
    )
    said = report.reasons(planner, sizing, decided, found)
    return replace(sizing, reasons=said, moments=report.moments(sizing, decided))


def _doubt(planner: Planner) -> str:
    peak, unknown = planner.cost.peak, planner.prompt.given.unknown
    if not peak.events:
        return f"the encoder's peak is taken as {peak.how}"
    return f"what the model makes of a prompt before its decoder could not be followed ({unknown})" if unknown else ""


def _on_a_real_card(peak: Peak) -> int:
    """What torch's allocator would take there: what the host's kernels take inside one op, no card's kernels do."""
    return (peak.lasting() if peak.policy is ARENA else peak).reserved()


def _encoding(cost: Cost) -> Encoding:
    return Encoding(
        width=cost.width,
        height=cost.height,
        images=cost.images,
        patches=cost.picture.patches,
        tokens=cost.picture.tokens,
        pixels=cost.pixels,
        features=cost.features,
        live=cost.peak.live,
        reserved=_on_a_real_card(cost.peak),
        peak=cost.peak.total,
    )
