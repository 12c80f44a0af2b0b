"""The kernels' source compiled for the processor (`shim.h`), and for cards by clang: what the tests of csrc share.

    library = native_library(tmp_path_factory, monkeypatch);  text = assembly("gfx1100", folder)

Each is compiled once in a run. Machines without the compiler skip, with a reason.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mmswap.hip_ext import backend, supply
from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.library import Library, load

HERE = Path(__file__).parent
CSRC = Path(os.environ.get("MMSWAP_TEST_CSRC") or HERE.parents[1] / "hip_ext" / "csrc")
"""`planted.py` names another one."""
sys.path.insert(0, str(HERE.parents[0] / "llm" / "ops"))  # cases, truths, tolerance

ADDRESSES = ("-fsanitize=address",)
CLANG = "clang++-22"
CARDS = ("gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")


def on_processor(folder: Path, *flags: str) -> Path:
    """A library of the source for this processor. `flags`: -DMMS_CPU_RDNA2, or ADDRESSES."""
    if os.name == "nt" or platform.machine().lower() not in ("x86_64", "amd64") or shutil.which("g++") is None:
        pytest.skip("the kernels run on a processor of x86-64 by g++ on Linux alone")
    library = folder / f"kernels{''.join(flags).replace('=', '-')}.so"
    words = ["-std=c++17", "-O0", "-shared", "-fPIC", "-DMMS_CPU", f"-I{HERE}", *flags, "-fno-stack-protector"]
    compiled(["g++", *words, str(CSRC / "mmswap_hip.cpp"), "-o", str(library)])
    return library


def assembly(card: str, folder: Path) -> str:
    """The machine code of every kernel, as text, by clang without HIP's headers."""
    if shutil.which(CLANG) is None:
        pytest.skip(f"there is no {CLANG}, which compiles for AMD cards (Debian: clang-22 lld-22 llvm-22)")
    out = folder / f"{card}.s"
    words = ["-x", "hip", f"--offload-arch={card}", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O3", "-std=c++17"]
    compiled([CLANG, *words, "-Werror", "-S", str(CSRC / "mmswap_hip.cpp"), "-o", str(out)])
    return out.read_text()


@cache
def _compiled(words: tuple[str, ...]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


def compiled(words: list[str]) -> None:
    """Raises AssertionError: with the first errors of the compiler."""
    errors = [line for line in _compiled(tuple(words)).splitlines() if "error" in line]
    assert not errors, "\n".join(errors[:5])


CPU = torch.device("cpu")
COMPUTED = tuple(op for op in backend.IMPLEMENTATIONS if op not in ("kv_store", "gptq_shuffle"))
"""Ops that are judged by a truth in float64; the others by equality with the reference."""


def native_library(folders: pytest.TempPathFactory, patch: pytest.MonkeyPatch, *flags: str) -> Library:
    """For one test: what the backend finds on the processor."""
    found = load(on_processor(shared_folder(folders), *flags), "cpu")
    assert isinstance(found, Library), str(found)
    patch.setitem(supply._held, CPU, found)
    return found


def shared_folder(folders: pytest.TempPathFactory) -> Path:
    """One for all tests of a run: everything is compiled once."""
    folder = folders.getbasetemp() / "native"
    folder.mkdir(exist_ok=True)
    return folder


def matrix_units(library: Library, kind: int) -> None:
    """What the processor emulates from now on: 11, 12, or 0, none."""
    ctypes.c_int.in_dll(ctypes.CDLL(library.origin), "mms_cpu_wmma").value = kind


@contextmanager
def splits(library: Library, count: int) -> Iterator[None]:
    """Attention shares its slots among so many blocks."""
    proposed = library.mms_attention_splits
    library.mms_attention_splits = lambda *_: count
    try:
        yield
    finally:
        library.mms_attention_splits = proposed


def start(library: Library, launcher: str, struct: str, **fields: Any) -> None:
    """A launcher with tensors and numbers by their names. Raises KernelError."""
    numbers = {name: value.data_ptr() if isinstance(value, torch.Tensor) else value for name, value in fields.items()}
    getattr(library, launcher)(STRUCTS[struct](**numbers), None)
