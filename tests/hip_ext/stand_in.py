"""The kernels for the processor, with a HIP runtime that starts them by name (`stand_in.cpp`), bound in both ways.

both = Both(stand_in(folder));  both.launchers.mms_rms_norm(arguments, 0);  both.told()
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest
from native import CSRC, HERE, compiled

from mmswap.hip_ext.code import CodeLibrary
from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.library import Library
from mmswap.hip_ext.runtime import Runtime

OF_KERNELS = {
    "act": "mms_act", "norm": "mms_norm", "rotary": "mms_rotary", "take": "mms_take", "linear": "mms_linear",
    "w4": "mms_w4", "experts": "mms_experts",
    "gptq": "mms_gptq", "kv": "mms_kv", "attention": "mms_attention", "join": "mms_attention",
}  # fmt: skip


def stand_in(folder: Path) -> Path:
    """Compiles it, once for a folder."""
    if os.name == "nt" or platform.machine().lower() not in ("x86_64", "amd64") or shutil.which("g++") is None:
        pytest.skip("the kernels run on a processor of x86-64 by g++ on Linux alone")
    library = folder / "stand_in.so"
    words = ["-std=c++17", "-O1", "-shared", "-fPIC", "-DMMS_CPU", f"-I{HERE}", f"-I{CSRC}", "-fno-stack-protector"]
    compiled(["g++", *words, str(HERE / "stand_in.cpp"), "-o", str(library), "-ldl"])
    return library


class Both:
    """The same library by its launchers, and by its kernels' names as hiprtc's are started."""

    def __init__(self, path: Path) -> None:
        self.opened = ctypes.CDLL(str(path))
        self.opened.stand_in_told.restype = ctypes.c_char_p
        self.launchers = Library(self.opened, "launchers")
        self.code = CodeLibrary(b"", Runtime(self.opened, str(path), "7.2"), "code")

    def told(self) -> list[tuple[Any, ...]]:
        """Kernel, blocks, threads, stream and every field of the argument, of each start since the last question."""
        return [_start(line) for line in self.opened.stand_in_told().decode().splitlines()]


def _start(line: str) -> tuple[Any, ...]:
    name, x, y, threads, stream, text = line.split()
    struct = STRUCTS[OF_KERNELS[name.removeprefix("mms_k_").split("_")[0]]]
    arguments: Any = struct.from_buffer_copy(bytes.fromhex(text))
    fields = {field: getattr(arguments, field) for field, *_ in struct._fields_}
    plain = {field: value[:] if isinstance(value, ctypes.Array) else value for field, value in fields.items()}
    return name, int(x), int(y), int(threads), int(stream), plain
