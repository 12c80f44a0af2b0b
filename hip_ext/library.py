"""A library of launchers, loaded and bound; or `Missing`, whose every call says why and what helps.

    library = load("gfx1100-2f0c9a31d5e87b64.so", "hip");  library.mms_rms_norm(arguments, stream)

A launcher takes one struct of `interface.py` and a stream as a number (None: the default one). Importing this loads
nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmswap.errors import KernelError, told
from mmswap.hip_ext import runtime
from mmswap.hip_ext.elf import whole
from mmswap.hip_ext.interface import ABI, FUNCTIONS, STATUS, STRUCTS

REBUILD = "remove it, and it is built again"


class Missing:
    """Kernels that are not there.

    Attributes:
        reason: why, for the middle of a sentence.
        advice: what helps.
    """

    def __init__(self, reason: str, advice: str) -> None:
        self.reason, self.advice = reason, advice

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*_: Any) -> Any:
            raise KernelError(f"There is no native kernel {name} here: {self}.")

        return call

    def __str__(self) -> str:
        return "; ".join(part for part in (self.reason, self.advice) if part)


class Library:
    """Launchers of one library: `mms_...(struct, stream)` raises KernelError with the words of the library."""

    def __init__(self, opened: Any, origin: str, hip: Any = None) -> None:
        """`opened`: has the functions of the header, of its ABI. `origin`: where it came from, for people.

        Args:
            hip: the HIP runtime, which has words for what it refuses; None: there is none.
        """
        self.origin = origin
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(opened, name)
            function.restype, function.argtypes = result, arguments
            starts = len(arguments) == 2 and result is ctypes.c_int
            setattr(self, name, _checked(name, function, opened, hip) if starts else _asked(function))

    def __getattr__(self, name: str) -> Any:  # for type checkers: what there is was set above
        raise AttributeError(f"{self.origin} has no {name}")


def _asked(function: Any) -> Callable[..., Any]:
    def ask(*arguments: Any) -> Any:
        return function(*(ctypes.byref(word) if isinstance(word, ctypes.Structure) else word for word in arguments))

    return ask


def _checked(name: str, function: Any, opened: Any, hip: Any) -> Callable[[ctypes.Structure, int | None], None]:
    byref = ctypes.byref

    def start(arguments: ctypes.Structure, stream: int | None) -> None:
        status = function(byref(arguments), stream)
        if status:
            text = (opened.mms_status_text(status) or b"").decode("utf-8", "replace").rstrip(".")
            if status > STATUS["RUNTIME"] and hip is not None:
                text += f": {runtime.error_text(hip, status - STATUS['RUNTIME'])}"
            raise KernelError(f"{name} was not started: {text} (status {status}); use --backend reference.")

    return start


def load(path: Path, kind: str) -> Library | Missing:
    """Loads a library that was built for `hip`, `cuda` or `cpu`."""
    try:
        binary = path.read_bytes()
    except OSError as error:
        return Missing(f"{path} cannot be read ({told(error)})", REBUILD)
    if not whole(binary):
        return Missing(f"{path} is cut off", REBUILD)
    refused = _wrong_runtime(path, binary) if kind == "hip" else None
    if refused is not None:
        return refused
    try:
        opened = ctypes.CDLL(str(path))
        fault = _unlike(opened)
    except (OSError, AttributeError) as error:
        return Missing(f"{path} cannot be loaded ({told(error)})", REBUILD)
    found = runtime.loaded() if kind == "hip" else None
    hip = found.library if isinstance(found, runtime.Runtime) else None
    return Library(opened, str(path), hip) if fault is None else Missing(f"{path} {fault}", REBUILD)


def _unlike(opened: Any) -> str | None:
    """Why a library is not of this version of mmswap."""
    abi = opened.mms_abi()
    if abi != ABI:
        return f"is of another version of mmswap (interface {abi}, here {ABI})"
    size = opened.mms_struct_size
    size.restype, size.argtypes = ctypes.c_int64, [ctypes.c_int]
    for index, (name, struct) in enumerate(STRUCTS.items()):
        if size(index) != ctypes.sizeof(struct):
            return f"is of another version of mmswap ({name} has {size(index)} bytes, here {ctypes.sizeof(struct)})"
    return None


def _wrong_runtime(path: Path, binary: bytes) -> Missing | None:
    """Refuses a library whose loading would load a second HIP runtime, or that finds none."""
    found = runtime.loaded()
    if isinstance(found, str):
        return Missing(found, "install torch for ROCm")
    own = Path(found.path).name
    others = [name for name in runtime.named_in(binary) if name.lower() != own.lower()]
    if others:
        return Missing(f"{path} would load {others[0]}, a second HIP runtime beside torch's {own}", REBUILD)
    return None
