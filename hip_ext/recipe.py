"""What is compiled, and what the product is called. Starts no compiler, imports no torch.

    Target("hip", ("gfx1100",), "7.2").file(windows=False)      # 'gfx1100-2f0c9a31d5e87b64.so'

A name holds the architecture and a hash of all that the product depends on: sources, flags, architectures, runtime.
It has 40 characters at most, and only letters that every file system takes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
UNIT = "mmswap_hip.cpp"
"""The one file that is compiled; it includes the others."""

RTC_UNIT = "kernels.h"
"""What a runtime compiler compiles: kernels without launchers."""

RTC_FLAGS = ("-DMMS_RTC",)
FLAGS = ("-O3", "-std=c++17")
BARE = ("-nogpuinc", "-nogpulib")
"""The sources use no header and no library of HIP: whatever an SDK has of them stays out."""

ENDINGS = {"hip": (".so", ".dll"), "cuda": (".so", ".dll"), "code": (".hsaco", ".hsaco")}
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Target:
    """One product.

    Attributes:
        kind: `hip` or `cuda`, a library with launchers; `code`, what a runtime compiler makes: kernels alone.
        archs: as compilers call them: gfx1100, sm_90.
        runtime: version of the runtime that it is for.
    """

    kind: str
    archs: tuple[str, ...]
    runtime: str

    def key(self) -> str:
        """16 hexadecimal digits."""
        parts = (self.kind, *self.archs, self.runtime, *FLAGS, source_hash())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def file(self, *, windows: bool) -> str:
        """The product's name."""
        shown = re.sub(r"[^a-z0-9_-]", "", self.archs[0].lower())[:17]
        return f"{shown}-{self.key()}{ENDINGS[self.kind][windows]}"


def source_files(folder: Path = SOURCES) -> list[Path]:
    """In the order of their names."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".py")


def source_hash(folder: Path = SOURCES) -> str:
    """Of names and contents; line ends do not count, which git may have changed."""
    whole = hashlib.sha256()
    for path in source_files(folder):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        whole.update(f"{path.name}\0{len(text)}\0".encode())
        whole.update(text)
    return whole.hexdigest()
