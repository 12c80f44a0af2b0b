"""The library that goes into a wheel: `MMSWAP_HIP_ARCH="gfx1030;gfx1100" pip wheel .`. Imports no torch.

    ship(Surroundings.real(), Path("build/lib/mmswap/hip_ext/built"))

Beside it lies `built.json`, by which `shipped_for` finds it again on the machine where it is used.
"""

from __future__ import annotations

import json
from pathlib import Path

from mmswap.errors import KernelError
from mmswap.hip_ext.arch import covers, hip_arch
from mmswap.hip_ext.build import build
from mmswap.hip_ext.recipe import Target, source_hash
from mmswap.hip_ext.surroundings import Surroundings

FOLDER = Path(__file__).parent / "built"
MANIFEST = "built.json"


def ship(here: Surroundings, into: Path) -> Path:
    """Builds one library for all architectures that MMSWAP_HIP_ARCH names, and writes its entry.

    Raises:
        KernelError: no architecture is named, or it cannot be built.
    """
    asked = hip_arch(here)
    if asked.source != "MMSWAP_HIP_ARCH" or asked.value is None:
        raise KernelError("; ".join(asked.faults) or "MMSWAP_HIP_ARCH names no architecture")
    archs = tuple(asked.value.split(";"))
    made = build(Target("hip", archs, ""), here, into)
    entry = {"file": made.name, "kind": "hip", "archs": list(archs), "sources": source_hash()}
    (into / MANIFEST).write_text(json.dumps([entry], indent=1), encoding="utf-8")
    return made


def shipped_for(target: Target, folder: Path = FOLDER) -> Path | None:
    """The wheel's library, if it is of these sources, for this architecture."""
    try:
        entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        hashed = source_hash()
        for entry in entries:
            fits = entry["kind"] == target.kind and any(covers(name, target.archs[0]) for name in entry["archs"])
            if fits and entry["sources"] == hashed and (folder / entry["file"]).is_file():
                return folder / str(entry["file"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no wheel with kernels, or a damaged one: the cache is asked
    return None
