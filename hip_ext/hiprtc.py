"""HIP's compiler that comes with the runtime: no SDK, no headers, no files. It makes kernels alone, no launchers.

    library = find(found.path, here);  code = compile_code(library, "gfx1030")      # bytes for hipModuleLoadData

It lies beside the HIP runtime that torch has loaded; MMSWAP_HIPRTC names another one.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from mmswap.errors import KernelError, told
from mmswap.hip_ext import runtime
from mmswap.hip_ext.overrides import HIPRTC
from mmswap.hip_ext.recipe import FLAGS, RTC_FLAGS, RTC_UNIT, source_files
from mmswap.hip_ext.surroundings import Surroundings

_NAME = re.compile(r"libhiprtc\.so[.\d]*|hiprtc\d*\.dll", re.IGNORECASE)


def find(beside: str, here: Surroundings) -> Any:
    """The loaded compiler. `beside`: path of the HIP runtime in this process.

    Raises:
        KernelError: there is none, or it would bring a second HIP runtime.
    """
    asked = here.variable(HIPRTC)
    paths = [asked] if asked else runtime.modules(runtime.RTC) or _neighbours(Path(beside))
    if not paths:
        raise KernelError(f"there is no hiprtc beside {beside}; {HIPRTC} would name it")
    before = runtime.modules(runtime.HIP)
    try:
        library = runtime.opened(paths[0]) or ctypes.CDLL(paths[0])
    except OSError as error:
        raise KernelError(f"{paths[0]} cannot be loaded ({told(error)}); {HIPRTC} would name another") from error
    if runtime.modules(runtime.HIP) != before:
        raise KernelError(f"{paths[0]} brought a HIP runtime of its own; {HIPRTC} would name the one of torch")
    return library


def _neighbours(library: Path) -> list[str]:
    """hiprtc in the folder of a HIP runtime, the newest first; not its built-ins, which have a similar name."""
    try:
        return sorted((str(path) for path in library.parent.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except OSError:
        return []


def compile_code(library: Any, arch: str) -> bytes:
    """A code object of all kernels.

    Raises:
        KernelError: the compiler refuses; the sentence has its first error.
    """
    sources = {path.name: path.read_bytes() for path in source_files()}
    names = [name for name in sources if name.endswith(".h") and name != RTC_UNIT]
    texts = (ctypes.c_char_p * len(names))(*(sources[name] for name in names))
    labels = (ctypes.c_char_p * len(names))(*(name.encode("ascii") for name in names))
    program = ctypes.c_void_p()
    _check(library, library.hiprtcCreateProgram(
        ctypes.byref(program), ctypes.c_char_p(sources[RTC_UNIT]), RTC_UNIT.encode("ascii"), len(names), texts, labels
    ))  # fmt: skip
    try:
        words = [f"--offload-arch={arch}", *FLAGS, *RTC_FLAGS]
        options = (ctypes.c_char_p * len(words))(*(word.encode("ascii") for word in words))
        if library.hiprtcCompileProgram(program, len(words), options):
            raise KernelError(f"hiprtc refuses the kernels for {arch}: {_log(library, program)}")
        size = ctypes.c_size_t()
        _check(library, library.hiprtcGetCodeSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(library, library.hiprtcGetCode(program, code))
        return code.raw
    finally:
        library.hiprtcDestroyProgram(ctypes.byref(program))


def _check(library: Any, status: int) -> None:
    if status:
        ask = library.hiprtcGetErrorString
        ask.restype = ctypes.c_char_p
        raise KernelError(f"hiprtc failed: {(ask(status) or b'').decode('utf-8', 'replace') or f'code {status}'}")


def _log(library: Any, program: ctypes.c_void_p) -> str:
    """The first error that the compiler wrote."""
    size = ctypes.c_size_t()
    if library.hiprtcGetProgramLogSize(program, ctypes.byref(size)) or not size.value:
        return "it does not say why"
    text = ctypes.create_string_buffer(size.value)
    library.hiprtcGetProgramLog(program, text)
    lines = text.value.decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in lines if "error" in line), (lines or [""])[0])[:300]
