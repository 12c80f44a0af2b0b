"""Kernels alone, without a library of launchers: loaded into torch's HIP runtime, and started by it.

    library = CodeLibrary(code, found, "hiprtc");  library.mms_rms_norm(arguments, stream)

It stands where a `Library` stands. What a launcher in C decides (which kernel, how many blocks) `rules.py` decides.
Kernels belong to one device: the one that is current when they are first started there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from mmswap.errors import KernelError
from mmswap.hip_ext import rules
from mmswap.hip_ext.library import Library
from mmswap.hip_ext.runtime import Runtime, error_text

_POINTER = ctypes.c_void_p
_UNSIGNED = ctypes.c_uint


class CodeLibrary(Library):
    """Launchers in Python over one code object."""

    def __init__(self, code: bytes, runtime: Runtime, origin: str) -> None:
        """`code`: as hiprtc wrote it, for the current device.

        Raises:
            KernelError: the runtime does not take it.
        """
        self.origin = origin
        self._runtime = runtime.library
        self._runtime.hipModuleLaunchKernel.argtypes = [
            _POINTER, *[_UNSIGNED] * 7, _POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER)
        ]  # fmt: skip
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._module = _POINTER()
        self._check(self._runtime.hipModuleLoadData(ctypes.byref(self._module), ctypes.c_char_p(code)), "loaded")
        for name, rule in rules.LAUNCHERS.items():
            setattr(self, name, self._launcher(rule))
        self.mms_w4_scratch = rules.w4_scratch
        self.mms_experts_scratch = rules.experts_scratch
        self.mms_attention_splits = rules.attention_splits

    def _launcher(self, rule: rules.Rule) -> Callable[[ctypes.Structure, int | None], None]:
        def start(arguments: ctypes.Structure, stream: int | None) -> None:
            for kernel in rule(arguments):
                self._start(kernel, stream)

        return start

    def _start(self, kernel: rules.Start, stream: int | None) -> None:
        function = self._functions.get(kernel.kernel) or self._found(kernel.kernel)
        values = (_POINTER * 1)(ctypes.addressof(kernel.arguments))
        status = self._runtime.hipModuleLaunchKernel(
            function, kernel.x, kernel.y, 1, kernel.threads, 1, 1, 0, stream, values, None
        )
        self._check(status, f"started ({kernel.kernel})")

    def _found(self, kernel: str) -> ctypes.c_void_p:
        function, name = _POINTER(), ctypes.c_char_p(kernel.encode("ascii"))
        status = self._runtime.hipModuleGetFunction(ctypes.byref(function), self._module, name)
        self._check(status, f"found ({kernel})")
        self._functions[kernel] = function
        return function

    def _check(self, status: int, done: str) -> None:
        if status:
            raise KernelError(
                f"A native kernel could not be {done}: {error_text(self._runtime, status)}; use --backend reference."
            )
