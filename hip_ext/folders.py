"""The folders that compilers and caches write to: can they be written to, and do tools bear their paths?

Nothing stays that was not there: a file that is written to try is removed; of a missing folder its parent is asked.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mmswap.hip_ext.surroundings import Found, Surroundings, is_folder

BUILD_ROOT = "MMSWAP_BUILD_ROOT"
BUILD_CLEAN = "MMSWAP_BUILD_CLEAN"
CACHES = ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_KERNEL_CACHE_PATH", "HF_HOME")
LONGEST = 260  # characters of a path on Windows, file included
OWN_NAMES = 60  # of them, what a build puts below its folder


def build_root(here: Surroundings) -> Found:
    """Where native code is built: MMSWAP_BUILD_ROOT, else the user's cache folder."""
    asked = here.variable(BUILD_ROOT)
    remarks: tuple[str, ...] = ()
    if here.is_set(BUILD_ROOT) and not asked:
        remarks = (f"{BUILD_ROOT} is set but empty, and ignored",)
    path, source = (here.place(asked), BUILD_ROOT) if asked else (_default_root(here), "the user's cache folder")
    kept = here.variable(BUILD_CLEAN) == "0"
    reason = f"{BUILD_ROOT} names it" if asked else f"{source}; {BUILD_ROOT} would move it"
    reason += f"; {BUILD_CLEAN}=0 keeps what a build leaves there" if kept else ""
    faults = faults_of(here, path)
    return Found(str(path), source, reason, _advice(BUILD_ROOT, faults), faults=remarks + faults)


def caches(here: Surroundings) -> list[tuple[str, Found]]:
    """The cache folders that a variable moves, by variable."""
    found = []
    for name in CACHES:
        text = here.variable(name)
        if text:
            faults = faults_of(here, here.place(text))
            found.append((name, Found(text, name, "", _advice(name, faults), faults=faults)))
    return found


def faults_of(here: Surroundings, path: Path) -> tuple[str, ...]:
    """What is wrong with a folder, one phrase each. Long paths and letters beyond ASCII trouble Windows alone."""
    found = []
    if here.windows and len(str(path)) + OWN_NAMES > LONGEST:
        found.append(
            f"the path has {len(str(path))} characters, and Windows' tools stop at {LONGEST} with the file's name"
        )
    if here.windows and not str(path).isascii():
        found.append("the path has letters beyond ASCII, which some compilers on Windows do not find")
    barrier = _barrier(path)
    if barrier:
        found.append(barrier)
    return tuple(found)


def _advice(name: str, faults: tuple[str, ...]) -> str:
    """What helps against them, for the variable that names the folder."""
    return f"let {name} name a short folder of plain letters that you may write to" if faults else ""


def _barrier(path: Path) -> str:
    """Why nothing can be written below `path`; empty when it can."""
    folder = path
    while not is_folder(folder):
        if _exists(folder):
            return f"{folder} is no folder"
        if folder == folder.parent:
            return f"{folder} does not exist"
        folder = folder.parent
    try:
        if folder == path:
            with tempfile.TemporaryFile(dir=folder, prefix="mmswap-doctor-"):
                return ""
        return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"
    except OSError as error:
        return f"{folder} cannot be written to ({error.strerror or error})"


def _default_root(here: Surroundings) -> Path:
    base = here.variable("LOCALAPPDATA") if here.windows else here.variable("XDG_CACHE_HOME")
    if base:
        return here.place(base) / "mmswap" / "build"
    home = here.variable("USERPROFILE" if here.windows else "HOME")
    inner = ("AppData", "Local") if here.windows else (".cache",)
    return (here.place(home) if home else Path.home()).joinpath(*inner, "mmswap", "build")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
