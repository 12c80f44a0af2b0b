"""Tensors out of safetensors files, one at a time and by plain reads. Knows where bytes lie, not what they mean.

    read(checkpoint.tensors["lm_head.weight"])        # the tensor, in memory of its own
    Later(entry)[...]                                 # the same, when somebody asks for it

No file is mapped: nothing of the checkpoint is left in the process, and a file can be moved or deleted after the load.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from mmswap.errors import ModelError
from mmswap.llm.checkpoint import Entry

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def read(entry: Entry) -> Tensor:
    """The tensor of an entry, on the host.

    Raises:
        ModelError: the file is shorter than it was when it was checked, or holds a dtype that torch does not.
    """
    raw = torch.empty(entry.nbytes, dtype=torch.uint8)
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise ModelError(f"{entry.file.name} holds tensors of {entry.dtype}, which cannot be read.")
    # not `raw.numpy()`: that would forbid whoever holds the tensor to resize its storage
    left = memoryview((ctypes.c_ubyte * entry.nbytes).from_address(raw.data_ptr())).cast("B")
    with entry.file.open("rb", buffering=0) as file:
        file.seek(entry.start)
        while left:
            count = file.readinto(left)
            if not count:
                raise ModelError(f"{entry.file.name} became shorter while it was read: download it again.")
            left = left[count:]
    return raw.view(dtype).view(entry.shape)


class Later:
    """A tensor that is read when it is indexed, as safetensors' own slices are: what transformers' loader takes."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __getitem__(self, index: Any) -> Tensor:
        return read(self._entry)[index]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._entry.shape

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self._entry.dtype]

    def get_shape(self) -> list[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        return self._entry.dtype
