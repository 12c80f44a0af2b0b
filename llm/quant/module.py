"""A linear layer whose weight is packed in 4 bits. Knows no checkpoint and no kernel: the op table computes.

`QuantLinear(packed, bias)` stands where an `nn.Linear` stood. Its tensors are buffers as they lie after repacking, so a
swap unit mirrors them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mmswap.llm.ops import cpu_layout, resolve
from mmswap.llm.ops.schema import ACTIVATIONS
from mmswap.llm.quant.layout import Packed4
from mmswap.llm.quant.unpacked import Unpacked


class QuantLinear(nn.Module):
    """y = x W^T + b with W in 4 bits, in the dtype of x.

    Attributes:
        words, scales, zeros, order: those of `Packed4`; once prepared for the processor `codes`, `scale_zero`, `order`:
            those of `Int4Pack`.
        bias: [out] or None.
        dtype: what `weight` says it is, for code that asks in which dtype a layer computes.
    """

    words: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None
    codes: Tensor
    scale_zero: Tensor

    def __init__(self, packed: Packed4, bias: Tensor | None = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if bias is not None and bias.shape != (packed.out_features,):
            raise ValueError(f"a bias of {list(bias.shape)} does not belong to {packed.out_features} outputs.")
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.group_size = packed.group_size
        self.dtype = dtype
        self.register_buffer("order", None)
        for name, tensor in packed.tensors():
            self.register_buffer(name, tensor)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def packed(self) -> Packed4:
        """The weight, of the tensors that the module holds now.

        Raises:
            ValueError: it is in the processor's layout.
        """
        if self.prepared:
            raise ValueError("this layer is in the processor's layout, which is not taken back.")
        return Packed4(self.words, self.scales, self.zeros, self.in_features, self.group_size, self.order)

    @property
    def prepared(self) -> bool:
        """Whether its tensors are in the processor's layout."""
        return "codes" in self._buffers

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return (self.codes if self.prepared else self.words).device

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, the bias among them."""
        return sum(tensor.nbytes for tensor in (*self.buffers(), *self.parameters()))

    @property
    def weight(self) -> Tensor:
        """The weight as a tensor [out, in] of `dtype`: asking for its dtype, shape or device is free, using it unpacks
        it whole."""
        shape = (self.out_features, self.in_features)
        return Unpacked(shape, self.dtype, self.device, lambda: self.dequantise(self.dtype))

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in], unpacked."""
        if not self.prepared:
            return self.packed.dequantise(dtype)
        stored = cpu_layout.dequantise(self.codes, self.scale_zero, self.group_size, torch.float32)
        if self.order is not None:  # empty columns point past the last input
            stored = stored.new_zeros(len(stored), self.in_features + 1).index_add_(1, self.order, stored)
        return stored[:, : self.in_features].to(dtype)

    def prepare(self, backend: str) -> str | None:
        """Bring its tensors into the layout of a backend of the op table, in place of what they were.

        Only `cpu` has one of its own. It rounds scales to bfloat16, is made at load and never saved.

        Returns:
            Why the layer stays as it is; None when it is in the backend's layout.
        """
        if backend != "cpu" or self.prepared:
            return None
        packed = self.packed
        why = cpu_layout.why_not(packed.out_features, packed.slots, packed.group_size)
        if why is None:
            made = cpu_layout.convert(packed)
            for name in ("words", "scales", "zeros"):
                delattr(self, name)
            self.group_size = made.group_size
            self.register_buffer("codes", made.packed)
            self.register_buffer("scale_zero", made.scale_zero)
            self.order = made.order
        return why

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]. Inputs of a dtype that the op table does not know are computed by plain torch."""
        if x.dtype in ACTIVATIONS:
            op = torch.ops.mmswap.int4pack if self.prepared else torch.ops.mmswap.w4a16
            return op(x, *self.arguments())  # type: ignore[no-any-return]
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.dequantise(x.dtype), bias)

    def bound(self, sample: Tensor) -> Callable[[Tensor], Tensor]:
        """The fastest way to call it with inputs like `sample`, chosen once and without the dispatcher's cost.

        Tensors are read from the module at each call: they may be moved and come back.
        """
        names = ("codes", "scale_zero") if self.prepared else ("words", "scales", "zeros")
        run = resolve("int4pack" if self.prepared else "w4a16", sample, *self.arguments()).run
        held, parameters = self._buffers, self._parameters  # looked up by hand: a module's attributes are slow
        width, group = self.in_features, self.group_size

        def call(x: Tensor) -> Tensor:
            weights = [held[name] for name in names]
            return run(x, *weights, held["order"], parameters.get("bias"), width, group)  # type: ignore[no-any-return]

        return call

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        kind = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{kind}, bits=4, group_size={self.group_size}, act_order={self.order is not None}"

    def arguments(self) -> tuple[Tensor | int | None, ...]:
        """Those of its op, after x."""
        more = (self.order, self.bias, self.in_features, self.group_size)
        return (self.codes, self.scale_zero, *more) if self.prepared else (self.words, self.scales, self.zeros, *more)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Moves, but no casts: `model.half()` would turn small scales into 0, and words into numbers."""
        before = {name: tensor.dtype for name, tensor in self.named_buffers(recurse=False)}
        held = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in list(self.named_buffers(recurse=False)):
            if tensor.dtype != before[name]:
                self._buffers[name] = held[name].to(tensor.device)
        return self


def merged(layers: Sequence[QuantLinear]) -> QuantLinear | None:
    """One layer whose outputs are those of all, in their order; None where their inputs or groups differ.

    Its tensors are copies: who keeps the merged one lets the others go.
    """
    first = layers[0]
    if first.prepared:
        return _merged_codes(layers)
    alike = not any(one.prepared for one in layers) and all(
        (one.in_features, one.group_size, one.scales.dtype, one.dtype)
        == (first.in_features, first.group_size, first.scales.dtype, first.dtype)
        and (one.bias is None) == (first.bias is None)
        and _equal(one.order, first.order)
        for one in layers
    )
    if not alike:
        return None
    words, scales, zeros = (torch.cat([getattr(one, name) for one in layers]) for name in ("words", "scales", "zeros"))
    bias = None if first.bias is None else torch.cat([one.bias for one in layers if one.bias is not None])
    packed = Packed4(words, scales, zeros, first.in_features, first.group_size, first.order)
    return QuantLinear(packed, bias, first.dtype)


def _merged_codes(layers: Sequence[QuantLinear]) -> QuantLinear | None:
    """The same in the processor's layout, which lies by blocks of rows."""
    first = layers[0]
    alike = all(
        one.prepared
        and (one.in_features, one.group_size, one.dtype) == (first.in_features, first.group_size, first.dtype)
        and (one.bias is None) == (first.bias is None)
        and one.order is None
        for one in layers
    )
    if not alike or any(one.out_features % cpu_layout.BLOCK for one in layers[:-1]):
        return None
    made = QuantLinear.__new__(QuantLinear)
    nn.Module.__init__(made)
    made.in_features, made.out_features = first.in_features, sum(one.out_features for one in layers)
    made.group_size, made.dtype = first.group_size, first.dtype
    made.register_buffer("order", None)
    made.register_buffer("codes", torch.cat([one.codes for one in layers]))
    made.register_buffer("scale_zero", torch.cat([one.scale_zero for one in layers], 1).contiguous())
    biases: list[Tensor] = [one.bias for one in layers if one.bias is not None]
    made.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
    return made


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
