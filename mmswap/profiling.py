"""A profile from a blueprint: the tower and the prefill traced at several sizes, and a curve through them.

    profile = profile_of(Blueprint.of("folder"))        # needs no card and no weights; the same on every machine
    profile.tower.at(patches), profile.samples, profile.prefill

With `measured` (see `measurer`) a real run at each size stands beside the trace.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.blueprint import Blueprint, Picture
from mmswap.card import Card
from mmswap.errors import ModelError
from mmswap.llm.loader import load_model
from mmswap.recall import as_json, fingerprint_of
from mmswap.swap import kernels
from mmswap.swap.dry_run import DryRun, PrefillPeak, calibrate, measure
from mmswap.swap.fit import fit
from mmswap.swap.peak import Peak
from mmswap.swap.profile import PrefillSample, Profile, Sample
from mmswap.swap.replay import EXPANDABLE, TORCH, Policy
from mmswap.swap.scratch import ScratchTable
from mmswap.vision.tower import Call, find_tower

SIZES = ((224, 224), (448, 448), (896, 896), (1344, 1344))
BY_RULES = "any card, by rules"
_ENOUGH = 4  # different patch counts that a curve with three coefficients is checked with
_MOST_IMAGES = 4
Size = tuple[int, int]
Measure = Callable[[Call], int]


def profile_of(
    blueprint: Blueprint,
    *,
    sizes: Sequence[Size] | None = None,
    policy: Policy = TORCH,
    measured: Measure | None = None,
    card: str | None = None,
) -> Profile:
    """The profile of a model.

    Where the sizes give fewer than four different patch counts (towers of one size, tiles), several pictures at once
    fill up. Without a card all figures come from the trace and from rules, so they are the same on every machine with
    the same versions of torch and transformers.

    Args:
        sizes: (width, height) of pictures in pixels; None for `SIZES`.
        policy: how the card's allocator takes memory.
        measured: makes a real run of a call and gives the most bytes that were alive; None: nothing is run.
        card: the device whose kernels are asked for their scratch; None: rules answer.

    Raises:
        ModelError: the model has no tower, or not one size can be traced; the message says why.
    """
    rules = ScratchTable(None, rules=kernels.on_a_card)
    table = rules if card is None else calibrate(policy)
    dry_run = DryRun(blueprint.model, policy=policy, scratch=table)
    samples = tuple(_samples(blueprint, dry_run, sizes or SIZES, measured))
    return Profile(
        fingerprint=fingerprint_of(blueprint.config, blueprint.dtype, blueprint.attention, card or BY_RULES),
        name=blueprint.name,
        config=as_json(blueprint.config),
        dtype=str(blueprint.dtype).removeprefix("torch."),
        attention=blueprint.attention,
        card=card or BY_RULES,
        how="traced" if measured is None else "traced, and measured by real runs",
        tower=fit((sample.patches, sample.live) for sample in samples),
        allocator=fit((sample.patches, sample.reserved) for sample in samples),
        samples=samples,
        prefill=tuple(_prefill(blueprint, dry_run, samples)),
        weights=weights_of(blueprint),
        versions={"torch": torch.__version__.partition("+")[0], "transformers": _version("transformers")},
        scratch=table.state(),
    )


def measurer(blueprint: Blueprint, card: Card) -> Measure:
    """Loads the weights and gives what makes real runs of the tower on `card`.

    Raises:
        ModelError: there are no weights, or they are damaged.
    """
    if blueprint.folder is None:
        raise ModelError(f"{blueprint.name} has no weights here: give the folder of a checkpoint to have it measured.")
    model = load_model(blueprint.folder, dtype=blueprint.dtype, attention=blueprint.attention)
    tower = find_tower(model)
    for _, module in tower.modules:
        module.to(card.device)

    def real(tensor: Tensor) -> Tensor:
        if tensor.device.type != "meta":
            return tensor.to(card.device)
        return torch.ones(tensor.shape, dtype=tensor.dtype, device=card.device)  # zeros would count as padding

    def run(call: Call) -> int:
        given = call.mapped(real)
        return measure(lambda: tower.run(given), card).live

    return run


def weights_of(blueprint: Blueprint) -> dict[str, int]:
    """Bytes of the weights by group; what is shared counts once, in the first group that has it."""
    parts = blueprint.parts
    groups: dict[str, list[nn.Module]] = {
        "vision tower": [module for _, module in blueprint.tower.modules],
        "layers": [layer for _, layer in parts.layers],
        "embeddings": [parts.embeddings],
        "output head": [parts.head],
        "other": [blueprint.model],
    }
    seen: set[int] = set()
    return {name: sum(_bytes_of(module, seen) for module in modules) for name, modules in groups.items()}


def _samples(
    blueprint: Blueprint, dry_run: DryRun, sizes: Sequence[Size], measured: Measure | None
) -> Iterator[Sample]:
    asked = chain(((size, 1) for size in sizes), ((sizes[-1], n) for n in range(2, _MOST_IMAGES + 1)))
    known: set[int] = set()
    for (width, height), images in asked:
        if images > 1 and len(known) >= _ENOUGH:
            return
        picture = blueprint.picture(width, height, images)
        if images > 1 and picture.patches in known:
            continue
        known.add(picture.patches)
        yield _sample(picture, (width, height), images, _traced(dry_run, picture), measured)


def _traced(dry_run: DryRun, picture: Picture) -> Peak:
    peak = dry_run.tower_peak(lambda model, call: find_tower(model).run(call), picture.call)
    if not peak.events:
        raise ModelError(f"The vision tower cannot be traced: {peak.how}.")
    return peak


def _sample(picture: Picture, size: Size, images: int, peak: Peak, measured: Measure | None) -> Sample:
    return Sample(
        width=size[0],
        height=size[1],
        images=images,
        patches=picture.patches,
        tokens=picture.tokens,
        live=peak.live,
        with_scratch=peak.with_scratch,
        reserved=peak.total,
        least_free=peak.least_free(peak.policy),
        expandable=peak.reserved(EXPANDABLE),
        output=peak.output,
        measured=measured(picture.call) if measured is not None else 0,
    )


def _prefill(blueprint: Blueprint, dry_run: DryRun, samples: Sequence[Sample]) -> Iterator[PrefillSample]:
    """At the fewest and the most tokens of a picture, or those of one and two. None where no decoder runs alone."""
    tokens = sorted({sample.tokens for sample in samples if sample.images == 1})
    if len(tokens) == 1:
        tokens = sorted({sample.tokens for sample in samples})[:2]
    for count in sorted({tokens[0], tokens[-1]}):
        found: PrefillPeak = dry_run.prefill_peak(blueprint.parts.decoder_name, count)
        if found.peak.events:
            yield PrefillSample(count, found.peak.live, found.peak.total, found.kv_bytes)


def _bytes_of(module: nn.Module, seen: set[int]) -> int:
    fresh: list[Any] = [one for one in module.parameters() if id(one) not in seen]
    seen.update(id(one) for one in fresh)
    return sum(one.numel() * one.element_size() for one in fresh)


def _version(package: str) -> str:
    return importlib.metadata.version(package)
