"""Starting a kernel with little work on the host: what was compiled for a call like this one is started directly.

    start = Launcher(w4_gemv);  start((blocks, 1, 1), (x, words, y, 4096), (128, 4), warps=4)

Triton's own `kernel[grid](...)` binds, classes and looks up every argument anew. Here the class of each argument is one
small tuple: what Triton's compiler may assume of it (dtype, 16-byte alignment, under 2 GiB; 1, divisible by 16, wide).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

_NARROW = 1 << 31
ALIGNED = 16
"""Bytes of an address, and what a number must be a multiple of, to be taken for aligned."""

OPTIONS: dict[str, Any] = {"num_stages": 1, "enable_fp_fusion": True}
"""Of every kernel. Loops are not pipelined: no other loads than those of products would be, and they cost registers and
instructions. Triton's default for fusing a product and a sum changes in 3.10: it is said."""


class Launcher:
    """One kernel, with what was compiled of it in this process."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[Any, Any] = {}
        self._interpreted = not isinstance(kernel, triton.JITFunction)

    def __call__(
        self, grid: tuple[int, int, int], arguments: tuple[Any, ...], constants: tuple[Any, ...], warps: int
    ) -> None:
        """Starts it on the device of the first argument. `arguments` and `constants` are in the kernel's order."""
        if 0 in grid:
            return
        if self._interpreted:
            self.kernel[grid](*arguments, *constants)
            return
        device = arguments[0].device
        key = (device.index, warps, constants, *[_class_of(argument) for argument in arguments])
        with nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device):
            compiled = self._compiled.get(key)
            if compiled is not None:
                compiled[grid](*arguments, *constants)
            else:
                self._compiled[key] = self.kernel[grid](*arguments, *constants, num_warps=warps, **OPTIONS)


def _class_of(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNED == 0, argument.untyped_storage().nbytes() < _NARROW
    if type(argument) is int:
        return argument == 1, argument % ALIGNED == 0, -_NARROW <= argument < _NARROW
    return type(argument)


def aligned(x: Tensor) -> Tensor:
    """x, or a copy, with a dense last dimension, rows whole pairs apart, and an address that is a multiple of 16."""
    dense = x.stride(-1) == 1 and (x.dim() < 2 or x.stride(0) % 2 == 0)
    return x if dense and x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)


def dense(x: Tensor) -> Tensor:
    """x, or a copy whose last dimension is dense."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def rows_of(x: Tensor) -> Tensor:
    """[rows, last] of x, without a copy where that can be; the last dimension is dense."""
    return dense(x.reshape(-1, x.shape[-1]))


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`, 1 at the least."""
    return 1 << (number - 1).bit_length() if number > 1 else 1
