"""The truth about live tensor bytes on the CPU, read from malloc itself. Knows nothing of mmswap.

`environment(folder)` builds the hook and says how to start a process under it; inside that process, `Hook()` reads it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_LIBRARY = "MMSWAP_TRUTH_HOOK"


def environment(folder: Path) -> dict[str, str]:
    """Compiles hook.c into `folder`; the variables that a process needs to run under it."""
    library = folder / "hook.so"
    source = Path(__file__).with_name("hook.c")
    subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), _LIBRARY: str(library)}


class Hook:
    """Counts what libc10 allocates in this process, from now on. torch must be imported."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[_LIBRARY])
        self._library.truth_start.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._library.truth_live.restype = self._library.truth_peak.restype = ctypes.c_longlong
        self._library.truth_start(*_code_of("libc10.so"))

    def reset(self) -> None:
        """The peak starts anew from what is alive now."""
        self._library.truth_reset()

    def live(self) -> int:
        return int(self._library.truth_live())

    def peak(self) -> int:
        return int(self._library.truth_peak())


def _code_of(name: str) -> tuple[int, int]:
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if len(fields) >= 6 and "x" in fields[1] and os.path.basename(fields[5]) == name:
                low, high = fields[0].split("-")
                return int(low, 16), int(high, 16)
    raise RuntimeError(f"{name} is not loaded")
