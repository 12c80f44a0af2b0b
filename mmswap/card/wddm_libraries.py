"""The libraries of Windows that the budget is read from, and how a function of theirs is called, by ctypes alone.

Knows no DXGI and no HIP. A `Libraries` can as well hold stand-ins: anything with the functions as attributes, be it a
library that `ctypes.CDLL` opened or an object with Python functions. Nothing is loaded before `Libraries.of_system()`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import c_int32, c_void_p, c_wchar_p
from dataclasses import dataclass
from typing import Any, cast

if sys.platform == "win32":
    prototype, open_library = ctypes.WINFUNCTYPE, ctypes.WinDLL
else:  # x64 has one convention, so that the same code calls an ELF stand-in
    prototype, open_library = ctypes.CFUNCTYPE, ctypes.CDLL

STATUS = c_int32  # HRESULT and NTSTATUS; not ctypes.HRESULT, which raises by itself
RUNTIMES = {
    "hip": (*(f"amdhip64_{major}.dll" for major in range(12, 5, -1)), "amdhip64.dll"),
    "cuda": ("nvcuda.dll",),
}


class CallFailed(Exception):
    """A function of Windows is missing or refused; the message names it. `status` is unsigned, where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def failed(name: str, status: int) -> CallFailed:
    """The error of a call that returned `status`, signed or not."""
    status &= 0xFFFFFFFF
    return CallFailed(f"{name} failed with 0x{status:08X}", status)


def expect(name: str, status: int) -> None:
    """Raises CallFailed unless a call returned 0, as NTSTATUS, PDH, HIP and CUDA calls do when they succeed."""
    if status != 0:
        raise failed(name, status)


FAILURES = (CallFailed, OSError)  # ctypes turns a crash inside a call into OSError on Windows


class Missing:
    """A library that could not be opened: whoever asks it for a function hears why."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise CallFailed(self._why)


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is called: dxgi, gdi32, pdh and kernel32, and the HIP or CUDA runtime that this process already uses."""

    dxgi: Any
    gdi: Any
    pdh: Any
    kernel: Any
    runtime: Any

    @classmethod
    def of_system(cls, kind: str) -> Libraries:
        """Windows' own, and the loaded runtime of `kind`, "hip" or "cuda". Never raises: what fails is `Missing`."""
        dxgi, gdi, pdh, kernel = (_open_system(name) for name in ("dxgi.dll", "gdi32.dll", "pdh.dll", "kernel32.dll"))
        return cls(dxgi, gdi, pdh, kernel, _loaded_runtime(kernel, RUNTIMES[kind]))


def bind(library: Any, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """The function `name` of a library (or stand-in) with its C types.

    Raises:
        CallFailed: the library has no such function.
    """
    found = getattr(library, name, None)
    if found is None:
        raise CallFailed(f"{name} is not there")
    typed: Any = prototype(result, *arguments)
    compiled = hasattr(found, "argtypes")  # else a Python function, which ctypes wraps
    return cast(Callable[..., Any], typed(ctypes.cast(found, c_void_p).value if compiled else found))


def _open_system(name: str) -> Any:
    path = os.path.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", name)
    try:
        return open_library(path)
    except OSError as error:
        return Missing(f"{name} cannot be loaded ({error})")


def _loaded_runtime(kernel: Any, names: tuple[str, ...]) -> Any:
    """The runtime that torch has loaded. Never loads one: a second copy would know nothing of this process's memory."""
    try:
        handle_of = bind(kernel, "GetModuleHandleW", c_void_p, c_wchar_p)
    except CallFailed as error:
        return Missing(str(error))
    for name in names:
        handle = handle_of(name)
        if handle:
            return ctypes.CDLL(name, handle=handle)
    return Missing(f"none of {', '.join(names)} is loaded")
