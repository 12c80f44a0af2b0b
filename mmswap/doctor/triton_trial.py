"""One Triton kernel, compiled and run: `trial(torch.device("cuda:0"))`. Triton is imported when it is called.

The kernel stands in a file because Triton reads its source.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

tl: Any = None  # triton.language, by which name the kernel's source knows it
SIZE, BLOCK = 1000, 256


def trial(device: torch.device) -> None:
    """Doubles 1000 numbers.

    Raises:
        Exception: whatever Triton raises; or ArithmeticError, for a wrong result.
    """
    global tl
    tl = import_module("triton.language")
    kernel = import_module("triton").jit(_double)
    numbers = torch.arange(SIZE, dtype=torch.float32, device=device)
    result = torch.empty_like(numbers)
    kernel[(-(-SIZE // BLOCK),)](numbers, result, SIZE, BLOCK=BLOCK)
    if not torch.equal(result.cpu(), numbers.cpu() * 2):
        raise ArithmeticError("the kernel ran and its result is wrong")


def _double(source, target, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(target + at, tl.load(source + at, mask=inside) * 2, mask=inside)
