"""A clang++ without an SDK that can compile kernels (not launchers) for AMD cards. The override is MMSWAP_CLANG.

    bare_clang(Surroundings.real()) -> Found(value="/usr/bin/clang++-22", source="PATH", version="22.1.8", ...)

Imports no torch.
"""

from __future__ import annotations

import re
from pathlib import Path

from mmswap.hip_ext.surroundings import Found, Surroundings, is_file, numbers

VARIABLE = "MMSWAP_CLANG"
OLDEST = 19
NAMES = ("clang++", *(f"clang++-{version}" for version in range(30, OLDEST - 1, -1)))


def bare_clang(here: Surroundings) -> Found:
    """MMSWAP_CLANG, then PATH, the plain name first; one that is too old or has no AMD target does not count."""
    faults = []
    for source, path in _candidates(here):
        if not is_file(path):
            faults.append(f"{source} names {path}, and there is no such program")
            continue
        version, fault = _look(here, path)
        if not fault:
            how = f"{source} names it" if source == VARIABLE else f"found in {source}"
            return Found(str(path), source, how, version=version, faults=tuple(faults))
        if source == VARIABLE:
            faults.append(f"{source} names {path}, {fault}")
    reason = f"no clang++ of version {OLDEST} or newer with AMD's target in {VARIABLE} and PATH"
    advice = f"needed only where kernels are built without a HIP SDK: let {VARIABLE} name one"
    return Found(None, "", reason, advice, faults=tuple(faults))


def _candidates(here: Surroundings) -> list[tuple[str, Path]]:
    asked = here.variable(VARIABLE)
    named = [(VARIABLE, here.place(asked))] if asked else []
    return named + [("PATH", path) for name in NAMES if (path := here.which(name)) is not None]


def _look(here: Surroundings, path: Path) -> tuple[str, str]:
    """Its version, and what is wrong with it."""
    try:
        said = here.run([str(path), "--version"])
        targets = here.run([str(path), "--print-targets"])
    except OSError as error:
        return "", f"which does not run: {error}"
    match = re.search(r"clang version (\d[\w.]*)", said)
    version = match[1] if match else ""
    if (numbers(version) or (0,))[0] < OLDEST:
        return version, f"which is older than {OLDEST}"
    return version, "" if "amdgcn" in targets else "which does not know AMD's cards"
