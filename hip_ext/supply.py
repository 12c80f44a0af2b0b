"""Which native kernels serve a device: a library named by hand, the wheel's, the cache's, or one built when asked for.

    found = kernels(torch.device("cuda"))      # Library, or Missing with reason and advice; builds nothing
    prepare(torch.device("cuda"))              # builds what is missing; what kernels() says then is final

Decided once a device and process. Never raises: what goes wrong becomes the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from mmswap.errors import KernelError, told
from mmswap.hip_ext import folders, runtime_code
from mmswap.hip_ext.arch import hip_arch, unfit
from mmswap.hip_ext.build import build
from mmswap.hip_ext.library import Library, Missing, load
from mmswap.hip_ext.live import Live, live
from mmswap.hip_ext.overrides import LIBRARY
from mmswap.hip_ext.recipe import Target
from mmswap.hip_ext.shipping import shipped_for
from mmswap.hip_ext.surroundings import Surroundings

FORCE = "--backend hip builds them once"

_LOG = logging.getLogger("mmswap")
_held: dict[torch.device, Library | Missing] = {}
_tried: set[torch.device] = set()


def kernels(device: torch.device) -> Library | Missing:
    """What there is for a device without building."""
    found = _held.get(device)
    if found is None:
        found = _held[device] = _guarded(device, building=False)
    return found


def prepare(device: torch.device) -> None:
    """Builds for a device that has nothing, once in a process."""
    if isinstance(kernels(device), Missing) and device not in _tried:
        _tried.add(device)
        _held[device] = _guarded(device, building=True)


def _guarded(device: torch.device, *, building: bool) -> Library | Missing:
    try:
        return find(device, Surroundings.real(), building=building)
    except Exception as error:  # whatever it is, the next backend computes
        return Missing(f"the search for native kernels failed ({told(error)})", "use --backend reference")


def find(device: torch.device, here: Surroundings, *, building: bool) -> Library | Missing:
    """As `kernels`, from these surroundings; nothing is remembered."""
    card = live(device)
    if isinstance(card, str):
        return Missing(card, "")
    return choose(card, device, here, building=building)


def choose(card: Live, device: torch.device, here: Surroundings, *, building: bool) -> Library | Missing:
    """For a card: the first library that loads; else, if `building`, a new one; else why there is none."""
    arch = card.arch
    if card.kind == "hip":
        wished = str(hip_arch(here, card.arch).value).split(";")
        arch = card.arch if card.arch in wished else wished[0]  # a list for a wheel may name other cards first
        why = unfit(arch)
        if why is not None:
            return Missing(why, "MMSWAP_HIP_ARCH names another architecture")
    target = Target(card.kind, (arch,), card.runtime)
    root = Path(str(folders.build_root(here).value))
    faults = []
    for path in _candidates(here, target, root):
        found = load(path, card.kind)
        if isinstance(found, Library):
            return found
        faults.append(found)
    if here.variable(LIBRARY):
        return faults[0]  # who names a library wants that one
    if not building:
        return faults[0] if faults else runtime_code.cached(target, root, device, here) or _unbuilt(arch)
    return _built(target, device, here, root)


def _unbuilt(arch: str) -> Missing:
    return Missing(f"no native kernels are built for {arch} yet", FORCE)


def _candidates(here: Surroundings, target: Target, root: Path) -> Iterator[Path]:
    asked = here.variable(LIBRARY)
    if asked:
        yield here.place(asked)
        return
    shipped = shipped_for(target)
    if shipped is not None:
        yield shipped
    cached = root / target.file(windows=here.windows)
    if cached.is_file():
        yield cached


def _built(target: Target, device: torch.device, here: Surroundings, root: Path) -> Library | Missing:
    """By a compiler; where there is none, or it fails, by the runtime's own compiler."""
    _LOG.warning("Native kernels for %s are being built, once; this can take a minute.", target.archs[0])
    try:
        found: Library | Missing = load(build(target, here, root), target.kind)
    except KernelError as error:
        found = Missing(str(error), "")
    if isinstance(found, Library) or target.kind != "hip":
        return found
    other = runtime_code.compiled(target, root, device, here)
    if not isinstance(other, Missing):
        return other
    return Missing(f"{found}; and without a compiler {other}", "use --backend auto")
