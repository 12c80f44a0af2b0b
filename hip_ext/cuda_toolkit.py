"""Where nvcc is: the same kernels are built for NVIDIA cards by it. The override is CUDA_HOME.

    nvcc(Surroundings.real()) -> Found(value="/usr/local/cuda/bin/nvcc", source="PATH", version="13.0", ...)

Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmswap.hip_ext.surroundings import Found, Surroundings, numbers

VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_WINDOWS = r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA"


def nvcc(here: Surroundings) -> Found:
    """CUDA_HOME, CUDA_PATH, PATH, then the usual folders."""
    faults = [
        f"{name} is set but empty, and ignored" for name in VARIABLES if here.is_set(name) and not here.variable(name)
    ]
    for source, folder in _folders(here):
        path = here.program(folder, "nvcc")
        if path is not None:
            return _with_version(here, path, source, tuple(faults))
        if source in VARIABLES:
            faults.append(f"{source} names {folder.parent}, which has no bin/nvcc")
    reason = "no nvcc in CUDA_HOME, CUDA_PATH, PATH and the usual folders"
    advice = "needed only to build native kernels for NVIDIA cards: install the CUDA toolkit, or let CUDA_HOME name it"
    return Found(None, "", reason, advice, faults=tuple(faults))


def _folders(here: Surroundings) -> Iterator[tuple[str, Path]]:
    for name in VARIABLES:
        if here.variable(name):
            yield name, here.place(here.variable(name)) / "bin"
    on_path = here.which("nvcc")
    if on_path is not None:
        yield "PATH", on_path.parent
    parent = here.place(_WINDOWS if here.windows else "/usr/local")
    try:
        found = sorted(
            parent.glob("v*" if here.windows else "cuda*"), key=lambda path: numbers(path.name), reverse=True
        )
    except OSError:
        found = []
    for folder in found:
        yield "the default folder", folder / "bin"


def _with_version(here: Surroundings, path: Path, source: str, faults: tuple[str, ...]) -> Found:
    version = ""
    try:
        match = re.search(r"release (\d+\.\d+)", here.run([str(path), "--version"]))
        version = match[1] if match else ""
    except OSError as error:
        faults += (f"nvcc is there and does not run: {error}",)
    how = f"{source} names it" if source in VARIABLES else f"found in {source}"
    return Found(str(path), source, how, version=version, faults=faults)
