"""A pretended Windows compiled from fake/*.c: ELF on Linux, under Wine the DLLs of scripts/test-windows."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from ctypes import c_char_p, c_int, c_uint32, c_uint64
from pathlib import Path
from typing import Any

from windows.world import AMD, GIB, LOCAL, SIZE, XT, World

from mmswap.card.wddm_libraries import Libraries

ON_WINDOWS = sys.platform == "win32"
NAMES = ("fake_windows", "fake_counters", "amdhip64_7" if ON_WINDOWS else "fake_runtime")
HERE = Path(__file__).parent
BUILT = "MMSWAP_WINDOWS_FAKES"  # where scripts/test-windows put the DLLs, from the root of the repository


def compiler() -> str | None:
    return shutil.which("gcc") or shutil.which("cc")


def why_not() -> str | None:
    """Why there is no compiled fake here."""
    if BUILT in os.environ or (not ON_WINDOWS and compiler()):
        return None
    return f"{BUILT} names no folder with the fakes" if ON_WINDOWS else "there is no C compiler"


def build(folder: Path) -> Path:
    """The folder with the fakes, built there unless they have been built before."""
    if BUILT in os.environ:
        return HERE.parents[1] / os.environ[BUILT]
    for name in NAMES:
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
        source, target = HERE / "fake" / f"{name}.c", folder / f"{name}.so"
        subprocess.run([str(compiler()), *flags, "-o", str(target), str(source)], check=True)
    return folder


class Compiled(World):
    def __init__(self, folder: Path) -> None:
        end = ".dll" if ON_WINDOWS else ".so"
        self.all = [ctypes.CDLL(str(folder / (name + end))) for name in NAMES]
        self.windows, self.counters, self.runtime = self.all
        self.kernel: Any = ctypes.WinDLL("kernel32") if ON_WINDOWS else self.windows  # events are the real ones there
        numbers = (c_uint32,) * 3
        self.windows.fake_card.argtypes = (c_char_p, c_uint32, c_uint64, c_uint64, c_uint64, c_uint32, *numbers)
        self.windows.fake_memory.argtypes = (c_uint64, c_uint32, c_uint32, c_uint64, c_uint64)
        self.counters.fake_row.argtypes = (c_uint32, c_uint64, c_uint32, c_uint64, c_uint64, c_int, c_uint32)
        self.runtime.fake_device.argtypes = (c_char_p, c_uint64, c_uint32, c_char_p)
        for library in self.all:
            library.fake_reset()

    def card(self, luid, *, name=XT, vendor=AMD, dedicated=SIZE, shared=32 * GIB, flags=0, pci=(0, 0, 0)):
        self.windows.fake_card(name.encode(), vendor, luid, dedicated, shared, flags, *pci)

    def memory(self, luid, budget, usage=0, *, group=LOCAL, node=0):
        self.windows.fake_memory(luid, node, group, budget, usage)

    def device(self, luid, *, name=XT, nodes=1, pci=""):
        self.runtime.fake_device(name.encode(), luid, nodes, pci.encode())

    def row(self, luid, *, pid=None, dedicated=0, shared=0, phys=0, status=0):
        self.counters.fake_row(pid or 0, luid, phys, dedicated, shared, pid is None, status)

    def fail(self, *calls):
        for library in self.all:
            library.fake_fail(",".join(calls).encode())

    def forget_cards(self):
        self.windows.fake_forget_cards()

    def forget_rows(self):
        self.counters.fake_forget_rows()

    def growing(self, times):
        self.counters.fake_growing(times)

    def old(self, yes):
        self.windows.fake_old(yes)

    def outdate(self):
        self.windows.fake_outdate()

    def signal(self):
        self.windows.fake_signal()

    def held(self):
        names = ("live", "registered", "handles", "kernel_handles")
        held = {name: getattr(self.windows, f"fake_{name}")() for name in names}
        return held | {"queries": self.counters.fake_queries()}

    def libraries(self):
        return Libraries(self.windows, self.windows, self.counters, self.kernel, self.runtime)
