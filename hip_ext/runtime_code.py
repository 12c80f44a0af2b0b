"""Kernels from the runtime's own compiler, for machines without any: compiled once, kept in the cache.

compiled(Target("hip", ("gfx1030",), "7.2"), root, device, Surroundings.real())     # CodeLibrary, or Missing
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from mmswap.errors import KernelError, told
from mmswap.hip_ext import hiprtc, runtime
from mmswap.hip_ext.build import keep
from mmswap.hip_ext.code import CodeLibrary
from mmswap.hip_ext.elf import whole
from mmswap.hip_ext.library import Missing
from mmswap.hip_ext.recipe import Target
from mmswap.hip_ext.surroundings import Surroundings


def cached(target: Target, root: Path, device: torch.device, here: Surroundings) -> CodeLibrary | Missing | None:
    """What an earlier process compiled; None if none did."""
    path = _place(target, root, here)
    if target.kind != "hip" or not path.is_file():
        return None
    try:
        code = path.read_bytes()
        if not whole(code):
            raise KernelError("it is cut off")
        return _loaded(code, device, str(path))
    except (OSError, KernelError) as error:
        return Missing(f"{path} cannot be used ({told(error)})", "remove it, and it is built again")


def compiled(target: Target, root: Path, device: torch.device, here: Surroundings) -> CodeLibrary | Missing:
    """Compiles, and keeps the result in `root` where that can be written to."""
    try:
        found = runtime.loaded()
        if isinstance(found, str):
            raise KernelError(found)
        code = hiprtc.compile_code(hiprtc.find(found.path, here), target.archs[0])
        made = _loaded(code, device, "hiprtc")
    except KernelError as error:
        return Missing(str(error), "")
    try:
        keep(code, _place(target, root, here))
    except KernelError as error:
        made.origin = f"hiprtc, at every start, because {told(error)}"
    return made


def _loaded(code: bytes, device: torch.device, origin: str) -> CodeLibrary:
    found = runtime.loaded()
    if isinstance(found, str):
        raise KernelError(found)
    with torch.cuda.device(device):
        return CodeLibrary(code, found, origin)


def _place(target: Target, root: Path, here: Surroundings) -> Path:
    return root / replace(target, kind="code").file(windows=here.windows)
