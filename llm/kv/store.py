"""The memory of one layer's cache: slots for keys and values, and the constants by which they are quantised.

    store = Store(kind, k, v, slots=512);  store.put(k, v, start=0);  keys, values = store.get(0, 17, torch.float32)

What goes in and comes out is [B, heads, T, D]; offsets are added back on the way out, so that what is read is what was
stored. Knows slots, no tokens: see `layer` and `ring`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import mmswap.llm.ops  # noqa: F401 - registers kv_store
from mmswap.llm.kv.kinds import BLOCK, Kind
from mmswap.llm.kv.ranges import Ranges


class Constants(NamedTuple):
    """Offsets and scales by which something is read; `v_scale` is None where every token has its own."""

    k_offset: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None


class Store:
    """Slots for one layer. The tensors keep their addresses until `resize`.

    Attributes:
        keys, values: [B, heads, slots, D], of the kind's dtype.
        k_offset, k_scale: [heads, D] in float32, or None. v_scale: [B, heads, slots] (int8), [heads, 1] (fp8) or None.

    Args:
        k, v: for shape and device; they are not stored.
        offsets: keys may be stored less an offset: nothing but a softmax will look at them.
    """

    def __init__(self, kind: Kind, k: Tensor, v: Tensor, slots: int, *, offsets: bool = True) -> None:
        self.kind = kind
        self._device = k.device
        self._shapes = (*k.shape[:2], k.shape[-1]), (*v.shape[:2], v.shape[-1])
        self.k_offset: Tensor | None = None
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None
        if kind.quantised:
            constant = (k.shape[1], k.shape[-1])
            self.k_scale = torch.ones(constant, device=k.device)
            self.k_offset = torch.zeros(constant, device=k.device) if offsets else None
            if not kind.scaled_tokens:
                self.v_scale = torch.ones((k.shape[1], 1), device=k.device)
        self.keys, self.values = self._slots(slots)

    @property
    def slots(self) -> int:
        return self.keys.shape[-2]

    @property
    def nbytes(self) -> int:
        held = (self.keys, self.values, self.k_offset, self.k_scale, self.v_scale)
        return sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None)

    def put(self, k: Tensor, v: Tensor, start: int) -> None:
        """Store `k` and `v` [B, heads, T, D] in the slots from `start` on, around the end if need be; T <= slots."""
        begin, tokens = start % self.slots, k.shape[2]
        if self.kind.quantised or begin + tokens > self.slots:
            start_at = torch.tensor([begin], dtype=torch.int32, device=self._device)
            torch.ops.mmswap.kv_store(k, v, self.keys, self.values, start_at, self.k_offset, self.k_scale, self.v_scale)
        else:
            self.keys[:, :, begin : begin + tokens] = k
            self.values[:, :, begin : begin + tokens] = v

    def cut(self, start: int, count: int) -> Tensor:
        """bool [heads, D]: the channels in which one of the `count` slots from `start` on holds the largest number."""
        begin = start % self.slots
        edge = self.kind.largest
        parts = [self.keys[:, :, begin : begin + count], self.keys[:, :, : max(0, begin + count - self.slots)]]
        return torch.stack([(part.float().abs() >= edge).any(2).any(0) for part in parts]).any(0)

    def get(self, start: int, count: int, dtype: torch.dtype, by: Constants | None = None) -> tuple[Tensor, Tensor]:
        """What the `count` slots from `start` on hold, in their order, as numbers of `dtype`.

        A view where nothing has to be computed. `by`: constants that are no longer the store's.
        """
        begin = start % self.slots
        first = min(count, self.slots - begin)
        parts = [self._read(begin, first, dtype, by or self._constants())]
        if first < count:
            parts.append(self._read(0, count - first, dtype, by or self._constants()))
            return torch.cat([k for k, _ in parts], 2), torch.cat([v for _, v in parts], 2)
        return parts[0]

    def passed(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """`k` and `v` as they would be read after they had been stored."""
        if not self.kind.quantised and self.kind.dtype == k.dtype:
            return k, v
        aside = Store(self.kind, k, v, k.shape[-2], offsets=self.k_offset is not None)
        aside.k_offset, aside.k_scale = self.k_offset, self.k_scale
        if not self.kind.scaled_tokens:
            aside.v_scale = self.v_scale
        aside.put(k, v, 0)
        return aside.get(0, k.shape[-2], k.dtype)

    def resize(self, slots: int, kept: int) -> None:
        """Make room for `slots`, keeping the first `kept`; one tensor after the other, so that little is held twice."""
        shape = self.keys.shape[:2]
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            new = torch.zeros((*shape, slots, old.shape[-1]), dtype=old.dtype, device=old.device)
            new[:, :, :kept] = old[:, :, :kept]
            setattr(self, name, new)
        if self.kind.scaled_tokens and self.v_scale is not None:
            new = torch.zeros((*shape, slots), device=self.v_scale.device)
            new[:, :, :kept] = self.v_scale[:, :, :kept]
            self.v_scale = new

    def rescale(self, ranges: Ranges, start: int, count: int) -> None:
        """Take over new constants; what the `count` slots from `start` on hold is stored again by them, in pieces."""
        old = Constants(*(None if part is None else part.clone() for part in self._constants()))
        assert self.k_scale is not None
        self.k_scale.copy_(ranges.k_scale)
        if self.k_offset is not None:
            self.k_offset.copy_(ranges.k_offset)
        if not self.kind.scaled_tokens and self.v_scale is not None:
            self.v_scale.copy_(ranges.v_scale)
        for first in range(start, start + count, BLOCK):
            held = self.get(first, min(BLOCK, start + count - first), torch.float32, old)
            self.put(*held, first)

    def clear(self) -> None:
        """Overwrite everything that was stored."""
        self.keys.zero_()
        self.values.zero_()
        if self.kind.scaled_tokens and self.v_scale is not None:
            self.v_scale.zero_()

    def _slots(self, slots: int) -> tuple[Tensor, Tensor]:
        """Zeros and not what lay there: a kernel that reads a whole block may multiply it by nought."""
        keys, values = (
            torch.zeros((batch, heads, slots, width), dtype=self.kind.dtype, device=self._device)
            for batch, heads, width in self._shapes
        )
        if self.kind.scaled_tokens:
            self.v_scale = torch.zeros((*self._shapes[0][:2], slots), device=self._device)
        return keys, values

    def _constants(self) -> Constants:
        return Constants(self.k_offset, self.k_scale, None if self.kind.scaled_tokens else self.v_scale)

    def _read(self, begin: int, count: int, dtype: torch.dtype, by: Constants) -> tuple[Tensor, Tensor]:
        keys, values = self.keys[:, :, begin : begin + count], self.values[:, :, begin : begin + count]
        if not self.kind.quantised:
            return keys.to(dtype), values.to(dtype)
        assert by.k_scale is not None
        assert self.v_scale is not None
        wide = keys.float().mul_(by.k_scale[None, :, None])
        if by.k_offset is not None:
            wide.add_(by.k_offset[None, :, None])
        k, wide = wide.to(dtype), values.float()  # one in float32 at a time
        if by.v_scale is None:
            wide.mul_(self.v_scale[:, :, begin : begin + count, None])
        else:
            wide.mul_(by.v_scale[None, :, None])
        return k, wide.to(dtype)
