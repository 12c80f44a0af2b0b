"""A module's double that holds shapes instead of numbers, and the dispatch rules that let real model code run on it.

    twin = fake_twin(model)                       # same classes, config and code; no bytes behind the weights
    with no_grad(), FakeTrace(twin) as trace:     # a LiveTracker
        tower(twin)(fake_tensors(pixels), grid)

Weights and pixels are fake, index and mask tensors are real: their values steer the control flow of real models.
The live model is read for shapes only, never for its parameters' bytes. Knows no images and no tokens.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from mmswap.swap import distributed
from mmswap.swap.tracker import LiveTracker, Scratch, tensors_of

aten = torch.ops.aten

BIG_FLOAT = 1 << 22  # elements; a float tensor above that is made fake even if nothing fake went in
BIG_INTEGER = 1 << 26  # the same for integers and bools, whose values steer control flow
_DEVICE = torch.ops.prim.device.default
_COMPARISONS = {aten.eq.Scalar: False, aten.ne.Scalar: True, aten.gt.Scalar: False, aten.lt.Scalar: False}
_COMPARISONS |= {aten.ge.Scalar: False, aten.le.Scalar: False}


def fake_twin(model: nn.Module, device: str = "cpu") -> nn.Module:
    """A copy of `model` in which every parameter and float buffer is a fake tensor; ties stay ties.

    Integer and bool buffers are copied for real (they steer control flow), unless they are on meta or very large.

    Args:
        model: any module, on any device, meta included. It is not changed.
        device: where the fake tensors say they are. `cpu` serves every card: a trace needs no card.
    """
    distributed.stand_in()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    for module in model.modules():
        loose = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
        for tensor in (*module._parameters.values(), *module._buffers.values(), *loose.values()):
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = _stand_in(tensor, mode, device)
    twin = copy.deepcopy(model, memo)
    twin.__dict__["_fake_mode"] = mode
    return twin


def fake_tensors(tree: Any, twin: nn.Module, device: str = "cpu") -> Any:
    """`tree` with every float tensor replaced by a fake one of `twin`; integers and bools are taken to `device`."""
    mode = mode_of(twin)
    return pytree.tree_map_only(Tensor, lambda tensor: _stand_in(tensor, mode, device), tree)


def mode_of(twin: nn.Module) -> FakeTensorMode:
    """The mode to which a twin's fake tensors belong; all that meets in one call must share it."""
    mode = vars(twin).get("_fake_mode")
    assert isinstance(mode, FakeTensorMode), "not made by fake_twin"
    return mode


def is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


def _stand_in(tensor: Tensor, mode: FakeTensorMode, device: str) -> Tensor:
    if is_fake(tensor) and tensor.fake_mode is mode:  # type: ignore[attr-defined]
        return tensor
    steers = not (tensor.is_floating_point() or tensor.is_complex())
    known = not is_fake(tensor) and tensor.device.type != "meta"
    if steers and known and tensor.numel() <= BIG_INTEGER and not isinstance(tensor, nn.Parameter):
        return tensor.detach().to(device, copy=True)
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    fake = FakeTensor(mode, shape, torch.device(device))  # as `with mode: empty_strided(...)`, at a tenth of its time
    return nn.Parameter(fake, requires_grad=False) if isinstance(tensor, nn.Parameter) else fake


class FakeTrace(LiveTracker):  # type: ignore[no-untyped-call]
    """A `LiveTracker` for calls on a twin. Where real code asks for values that a fake tensor lacks:

    - a real bool index becomes its real `nonzero()` before it meets a fake tensor; a fake one counts as all True;
    - comparing a fake float tensor with a number gives a real tensor, as if no element were equal or below or above
      (models ask so whether a whole tile is padding: none is);
    - what is made from nothing or from real tensors only stays real, except where it would be very large.
    """

    def __init__(self, twin: nn.Module, scratch: Scratch | None = None, names: bool = True) -> None:
        super().__init__(twin if names else None, scratch)
        self._mode = mode_of(twin)

    def told(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _DEVICE and is_fake(args[0]) and not self._mode.in_kernel_invocation:
            return args[0].fake_device  # most of what a trace is asked, and torch's own way to it is long
        return func(*args, **kwargs)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = list(tensors_of((args, kwargs)))
        if not any(is_fake(tensor) for tensor in tensors):
            if _elements(tensors, args) > _limit(tensors, kwargs):
                with self._mode:
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        if func in _COMPARISONS and is_fake(args[0]) and args[0].is_floating_point():
            return torch.full(args[0].shape, _COMPARISONS[func], dtype=torch.bool)
        if func is aten.index.Tensor and is_fake(args[0]):
            return func(args[0], [part for index in args[1] for part in self._as_integers(index)])
        if func is aten._grouped_mm.default and args[0].ndim == 2 and args[1].ndim == 3:
            with self._mode:  # torch's own stand-in insists on bf16, which the CPU kernel does not
                dtype = kwargs.get("out_dtype") or args[0].dtype
                return torch.empty(args[0].shape[0], args[1].shape[2], dtype=dtype, device=args[0].device)
        return func(*args, **kwargs)

    def _as_integers(self, index: Tensor | None) -> list[Tensor | None]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            return [index]
        if not is_fake(index):
            return list(index.nonzero(as_tuple=True))
        with self._mode:
            return [torch.empty(index.numel(), dtype=torch.long, device=index.device) for _ in index.shape]


def _limit(tensors: list[Tensor], kwargs: dict[str, Any]) -> int:
    dtypes = [tensor.dtype for tensor in tensors] or [kwargs.get("dtype") or torch.get_default_dtype()]
    return BIG_FLOAT if any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes) else BIG_INTEGER


def _elements(tensors: list[Tensor], args: tuple[Any, ...]) -> int:
    """Elements of the result, as far as the arguments tell: their broadcast, or the size given to a factory."""
    if not tensors:
        size = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        return torch.Size(size).numel() if all(isinstance(extent, int) for extent in size) else 0
    try:
        return int(torch.broadcast_shapes(*[tensor.shape for tensor in tensors]).numel())  # type: ignore[no-untyped-call]
    except RuntimeError:
        return max(tensor.numel() for tensor in tensors)
