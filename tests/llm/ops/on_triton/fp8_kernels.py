"""The 8-bit floats' arithmetic alone, as kernels of one program, for tests."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmswap.llm.ops.triton.fp8 import decoded8, encoded8


@triton.jit
def _decode(codes_ptr, y_ptr, E5M2: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y_ptr + i, decoded8(tl.load(codes_ptr + i), E5M2).to(tl.float32))


@triton.jit
def _encode(x_ptr, codes_ptr, n, E5M2: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(codes_ptr + i, encoded8(tl.load(x_ptr + i, mask=i < n, other=0.0), E5M2), mask=i < n)


def numbers_of(codes: Tensor, e5m2: bool) -> Tensor:
    """float32 of 256 codes."""
    y = torch.empty(256)
    _decode[(1,)](codes, y, e5m2, 256)
    return y if e5m2 else y * 256


def codes_of(x: Tensor, e5m2: bool) -> Tensor:
    """uint8 codes of float32 numbers."""
    codes = torch.empty(len(x), dtype=torch.uint8)
    _encode[(-(-len(x) // 8192),)](x, codes, len(x), e5m2, 8192)
    return codes
