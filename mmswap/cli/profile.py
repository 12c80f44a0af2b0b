"""`mmswap profile`: what a model's vision tower needs at several sizes, and the curve through it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmswap.cli.oneshot import collector_paused
from mmswap.cli.options import CARDS, Attention, Dtype, Json, require_kinds
from mmswap.errors import OptionError
from mmswap.units import format_bytes

if TYPE_CHECKING:
    from mmswap.blueprint import Blueprint
    from mmswap.swap.fit import Fit
    from mmswap.swap.profile import PrefillSample, Profile, Sample

_SIZE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")


def profile(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, config.json, hub id in the cache, or shipped profile.")
    ],
    dtype: Dtype = "auto",
    attention: Attention = "sdpa",
    card: Annotated[
        str | None,
        typer.Option(
            metavar="CARD", help=f"Calibrate the kernels' scratch on {CARDS}.", show_default="by rules, for any card"
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="WxH,...", help="Pictures to trace.", show_default="four squares up to 1344x1344"),
    ] = None,
    kv: Annotated[
        bool, typer.Option("--kv", help="Measure the offsets of its keys instead, for --kv fp8; needs weights.")
    ] = False,
    contexts: Annotated[
        str, typer.Option(metavar="TOKENS,...", help="With --kv: lengths of text to read.")
    ] = "128,2048,8192",
    measure: Annotated[bool, typer.Option("--measure", help="Run the tower at each size too; needs weights.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the profile.", show_default="in the cache folder"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find out what pictures cost a model's vision tower.

    Needs no weights, only a config. The profile is written to a file; one in the cache that was made with --card is
    used when the model runs there. With --kv it is the language model's keys that are measured, for an 8-bit KV cache.
    """
    wanted = _sizes(sizes)
    require_kinds(dtype, attention)
    if kv:
        from mmswap.cli.profile_kv import profile_kv

        profile_kv(model, dtype, card or "auto", contexts, out, as_json=as_json)
        return
    with collector_paused():
        found = _profiled(_blueprint(model, attention, dtype), card, wanted, measure)
    place = _kept(found, out)
    if as_json:
        print(
            json.dumps(
                found.to_json(), ensure_ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"), indent=1
            )
        )
        return
    print("\n".join(_lines(found)))
    print(f"\nWritten to {place}." if place is not None else "\nNot kept: the cache folder cannot be written.")


def _blueprint(model: str, attention: str, dtype: str) -> Blueprint:
    """Imported here and not before: torch and transformers take longer than all mistakes in the options."""
    import torch

    from mmswap.blueprint import Blueprint

    return Blueprint.of(model, attention=attention, dtype=getattr(torch, dtype) if dtype != "auto" else None)


def _profiled(blueprint: Blueprint, card: str | None, sizes: list[tuple[int, int]] | None, measure: bool) -> Profile:
    from mmswap.card import open_card
    from mmswap.profiling import measurer, profile_of
    from mmswap.recall import name_of
    from mmswap.swap.dry_run import policy_of
    from mmswap.swap.replay import TORCH

    if card is None and not measure:
        return profile_of(blueprint, sizes=sizes)
    opened = open_card(card or "auto")
    runs = measurer(blueprint, opened) if measure else None
    policy = policy_of(opened.device) if card is not None or measure else TORCH
    return profile_of(blueprint, sizes=sizes, policy=policy, measured=runs, card=name_of(opened))


def _kept(found: Profile, out: Path | None) -> Path | None:
    from mmswap.swap.profile import keep

    try:
        return keep(found, out)
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written: {error.strerror or error}.") from None


def _sizes(text: str | None) -> list[tuple[int, int]] | None:
    if text is None:
        return None
    matches = [_SIZE.fullmatch(part.strip().lower()) for part in text.split(",")]
    if not all(matches):
        raise OptionError(f"--sizes {text}: write sizes in pixels, for example 448x448,1344x1008.")
    return [(int(match[1]), int(match[2])) for match in matches if match is not None]


def _lines(found: Profile) -> list[str]:
    title = f"{found.name}: {found.dtype}, {found.attention} attention, {found.card}; {found.how}"
    return [title, "", *_table(found.samples), "", *_curve(found.tower), *_prefill(found.prefill)]


def _table(samples: tuple[Sample, ...]) -> list[str]:
    heads = ["picture", "patches", "live", "with scratch", "reserved", "least free", "expandable"]
    rows = [
        [
            f"{one.width}x{one.height}" + (f" x{one.images}" if one.images > 1 else ""),
            str(one.patches),
            *(format_bytes(n) for n in (one.live, one.with_scratch, one.reserved, one.least_free, one.expandable)),
        ]
        for one in samples
    ]
    if any(one.measured for one in samples):
        heads.append("measured")
        rows = [[*row, format_bytes(one.measured)] for row, one in zip(rows, samples)]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [heads, *rows]]


def _curve(tower: Fit) -> list[str]:
    terms = [f"{tower.b:.0f} bytes a patch"]
    if tower.a >= 1:
        terms.insert(0, f"{tower.a:.0f} bytes")
    if tower.linear:
        shape = "no square term: the attention does not hold its scores"
    else:
        terms.append(f"{tower.c:.1f} bytes a pair of patches")
        shape = "a square term: the attention holds its scores"
    return [
        f"live = {' + '.join(terms)} ({shape}).",
        f"The samples stray from it by {tower.residual:.2%} at the most; the margin is {tower.margin:.1%}.",
    ]


def _prefill(samples: tuple[PrefillSample, ...]) -> list[str]:
    return [
        f"Prefill of {one.tokens} image tokens in one pass: {format_bytes(one.live)} live, "
        f"{format_bytes(one.reserved)} reserved, {format_bytes(one.kv_bytes)} of them KV cache."
        for one in samples
    ]
