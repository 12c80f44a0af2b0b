"""The weights of many experts in 4 bits, in place of one parameter of an experts' module. Knows no routing.

`QuantStack` stands in a module where `gate_up_proj` [E, out, in] stood: `stack[expert]` is that expert's weight,
`stack.linear(x, experts)` computes with several. In any other expression it is the tensor that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from mmswap.llm.ops.schema import ACTIVATIONS
from mmswap.llm.quant.layout import Packed4
from mmswap.swap.fake import is_fake

FEW = 16
"""Rows up to which the op table's `expert_linear` is asked: it looks at each row's expert anew."""


class QuantStack(nn.Module):
    """Weights [E, out, in] in 4 bits, those of each expert as in `Packed4`.

    Attributes:
        words: int32 [E, out, padded / 8]. scales: [E, out, groups]. zeros: uint8 [E, out, groups].
        order: None, or int32 [E, slots].
        in_features, out_features, group_size: of each expert.
        transposed: whether the parameter that it stands for holds [E, in, out].
        dtype: in which it is unpacked.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None

    def __init__(
        self,
        words: Tensor,
        scales: Tensor,
        zeros: Tensor,
        order: Tensor | None,
        *,
        in_features: int,
        group_size: int,
        transposed: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, tensor in (("words", words), ("scales", scales), ("zeros", zeros), ("order", order)):
            self.register_buffer(name, tensor)
        self.in_features, self.out_features, self.group_size = in_features, words.shape[1], group_size
        self.transposed, self.dtype = transposed, dtype
        self.expert(0)  # raises if they do not belong together

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.words.shape[0]

    @property
    def shape(self) -> torch.Size:
        """Of the parameter that it stands for."""
        sides = (self.out_features, self.in_features)
        return torch.Size((self.experts, *(reversed(sides) if self.transposed else sides)))

    @property
    def ndim(self) -> int:
        return 3

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return self.words.device

    def expert(self, index: int) -> Packed4:
        """One expert's weight."""
        order = None if self.order is None else self.order[index]
        parts = (self.words[index], self.scales[index], self.zeros[index])
        return Packed4(*parts, self.in_features, self.group_size, order)

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """All of it, in the shape of the parameter that it stands for."""
        weights = torch.stack([self.expert(index).dequantise(dtype) for index in range(self.experts)])
        return weights.transpose(1, 2) if self.transposed else weights

    def __getitem__(self, index: Any) -> Tensor:
        """As of the parameter; with one expert's number only that one is unpacked."""
        one = index.item() if isinstance(index, Tensor) and index.dim() == 0 and not is_fake(index) else index
        if isinstance(one, int):
            weight = self.expert(one).dequantise(self.dtype)
            return weight.t() if self.transposed else weight
        return self.dequantise(self.dtype)[index]

    def __len__(self) -> int:
        return self.experts

    def __getattr__(self, name: str) -> Any:
        """What only a tensor has (`transpose`, `mT`, ...): of the tensor that it stands for."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or not hasattr(Tensor, name):
                raise
        return getattr(self.dequantise(self.dtype), name)

    def linear(self, x: Tensor, experts: Tensor, bias: Tensor | None = None) -> Tensor:
        """Row i of x [S, in] times the weight of expert `experts[i]`, plus its bias (of [E, out]): [S, out].

        `experts` ascend. Of each expert that is asked for the weight is unpacked once.
        """
        if len(x) <= FEW and self.order is None and x.dtype in ACTIVATIONS:
            more = (self.words, self.scales, self.zeros, bias, self.in_features, self.group_size)
            return torch.ops.mmswap.expert_linear(x, experts, *more)  # type: ignore[no-any-return]
        result = x.new_empty(len(x), self.out_features)
        start = 0
        for index, count in enumerate(_counts(experts, self.experts)):
            if count:
                rows = slice(start, start + count)
                own = None if bias is None else bias[index].to(x.dtype)
                result[rows] = _linear(x[rows], self.expert(index), own)
                start += count
        return result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves, but no casts."""
        held = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in list(self.named_buffers(recurse=False)):
            if tensor.dtype != held[name].dtype:
                self._buffers[name] = held[name].to(tensor.device)
        return self

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(cls, lambda one: one.dequantise(one.dtype), (args, kwargs or {}))
        return func(*args, **kwargs)


def _counts(experts: Tensor, number: int) -> list[int]:
    """Rows of each expert. A trace knows no routing: it takes an even one."""
    if is_fake(experts):
        rows = experts.shape[0]
        return [rows // number + (index < rows % number) for index in range(number)]
    return torch.bincount(experts, minlength=number).tolist()


def _linear(x: Tensor, weight: Packed4, bias: Tensor | None) -> Tensor:
    """float16 inputs are computed in float32 where the scales are not float16: such scales may be below its range."""
    narrow = x.dtype == torch.float16 and weight.scales.dtype != torch.float16
    dtype = torch.float32 if narrow else x.dtype
    bias = None if bias is None else bias.to(dtype)
    return functional.linear(x.to(dtype), weight.dequantise(dtype), bias).to(x.dtype)
