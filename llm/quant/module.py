"""A linear layer whose weight is packed in 4 bits, computed by the reference. Knows no checkpoint and no kernel.

`QuantLinear(packed, bias)` stands where an `nn.Linear` stood. Its tensors are buffers as they lie after repacking, so a
swap unit mirrors them as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmswap.llm.quant.layout import Packed4


class QuantLinear(nn.Module):
    """y = x W^T + b with W in 4 bits, in the dtype of x.

    Attributes:
        words, scales, zeros, order: those of `Packed4`.
        bias: [out] or None.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None

    def __init__(self, packed: Packed4, bias: Tensor | None = None) -> None:
        super().__init__()
        if bias is not None and bias.shape != (packed.out_features,):
            raise ValueError(f"a bias of {list(bias.shape)} does not belong to {packed.out_features} outputs.")
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.group_size = packed.group_size
        self.register_buffer("order", None)
        for name, tensor in packed.tensors():
            self.register_buffer(name, tensor)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def packed(self) -> Packed4:
        """The weight, of the tensors that the module holds now."""
        return Packed4(self.words, self.scales, self.zeros, self.in_features, self.group_size, self.order)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]: the weight is unpacked whole, for this call.

        float16 inputs are computed in float32 where the scales are not float16: such scales may be below its range.
        """
        narrow = x.dtype == torch.float16 and self.scales.dtype != torch.float16
        dtype = torch.float32 if narrow else x.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return functional.linear(x.to(dtype), self.packed.dequantise(dtype), bias).to(x.dtype)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        kind = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{kind}, bits=4, group_size={self.group_size}, act_order={self.order is not None}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves, but no casts: `model.half()` would turn small scales into 0, and words into numbers."""
        before = {name: tensor.dtype for name, tensor in self.named_buffers(recurse=False)}
        held = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in list(self.named_buffers(recurse=False)):
            if tensor.dtype != before[name]:
                self._buffers[name] = held[name].to(tensor.device)
        return self
