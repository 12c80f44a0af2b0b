"""What every op needs to start a launcher: codes of dtypes, addresses, rows, the stream. Knows no op.

start("mms_rms_norm", STRUCTS["mms_norm"](x=address(x), ...), x.device)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmswap.hip_ext.interface import DTYPES
from mmswap.hip_ext.supply import kernels

CODES = {
    torch.float16: DTYPES["F16"],
    torch.bfloat16: DTYPES["BF16"],
    torch.float32: DTYPES["F32"],
    torch.float8_e4m3fn: DTYPES["E4M3"],
    torch.float8_e5m2: DTYPES["E5M2"],
    torch.int8: DTYPES["I8"],
}
LARGEST = 2**31 - 1
BLOCKS = LARGEST // 256
"""Blocks of a grid."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One op, as `mmswap.llm.ops` asks for it: `run` computes, `refuses` says why not (None: it is right for these)."""

    run: Callable[..., Any]
    refuses: Callable[..., str | None]


def start(launcher: str, arguments: ctypes.Structure, device: torch.device) -> None:
    """Starts a kernel on the current stream of the tensors' device.

    Raises:
        KernelError: it was refused or could not be started.
    """
    found = kernels(device)
    if device.type != "cuda":
        getattr(found, launcher)(arguments, None)
    elif device.index == torch.cuda.current_device():
        getattr(found, launcher)(arguments, torch.cuda.current_stream(device).cuda_stream)
    else:
        with torch.cuda.device(device):
            getattr(found, launcher)(arguments, torch.cuda.current_stream(device).cuda_stream)


def address(tensor: Tensor | None) -> int | None:
    """None for a tensor that is missing."""
    return None if tensor is None else tensor.data_ptr()


def code(tensor: Tensor | None) -> int:
    """The dtype's; 0 for a tensor that is missing."""
    return 0 if tensor is None else CODES[tensor.dtype]


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, with numbers of the last dimension next to each other."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def rows_of(tensor: Tensor) -> Tensor:
    """[rows, last], without a copy where that can be; the last dimension is dense."""
    return dense(tensor.reshape(-1, tensor.shape[-1]))


def strided(name: str, tensor: Tensor | None) -> str | None:
    """Why a tensor that must not be copied (it is large, or written to) does not fit; None when it does."""
    if tensor is None or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1:
        return None
    return f"the last dimension of {name} is strided"


def scattered(**tensors: Tensor | None) -> str | None:
    """Why tensors of a weight do not fit: one of them is not contiguous."""
    found = [name for name, tensor in tensors.items() if tensor is not None and not tensor.is_contiguous()]
    return f"{found[0]} is not contiguous" if found else None


def crowded(items: int, each: int = 1) -> str | None:
    """Why there are too many items (rows, heads of tokens) for a grid whose blocks take `each`."""
    return f"{items} items: it takes {BLOCKS * each}" if items > BLOCKS * each else None


def oversized(*tensors: Tensor) -> str | None:
    """Why sizes do not fit: kernels count rows and columns with 32 bits."""
    found = [tensor for tensor in tensors if any(size > LARGEST for size in tensor.shape)]
    return f"a size of {max(found[0].shape)} is above {LARGEST}" if found else None
