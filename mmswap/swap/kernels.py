"""What torch's kernels take for themselves inside one op, by formula: for ops too large to be measured.

The CPU's were read off measurements on torch 2.13 and follow the kernels' sources; those for a card are from
documentation alone and were never compared with one. `on_the_host` and `on_a_card` apply the first that knows the
op. Knows operators, not models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmswap.swap.tracker import tensors_of

aten = torch.ops.aten
HUGE = 1 << 40
SDPA = aten._scaled_dot_product_flash_attention_for_cpu.default

_PACKED = {"w4a16": 1, "int4pack": 1, "expert_linear": 2}  # and where the words stand
_PIECES = 1 << 23  # bytes of codes that are taken apart at a time
_REDUCTIONS = {"sum", "mean", "prod", "var", "std", "var_mean", "norm", "linalg_vector_norm", "any", "all", "nansum"}
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # and where the left operand stands
_COPIES = {"clone", "copy_", "_to_copy", "cat", "stack", "index", "index_select", "gather", "scatter", "embedding"}
_COPIES |= {"constant_pad_nd", "repeat", "fill_", "zero_", "masked_fill_", "index_put_", "index_put", "masked_scatter"}
_COPIES |= {"new_zeros", "zeros_like", "empty_like", "ones_like", "roll", "flip"}
_COPIES |= {"repeat_interleave", "slice_scatter", "tril", "triu", "full_like", "lift_fresh", "_reshape_copy"}


def on_the_host(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """An upper bound of the kernel's scratch, in most cases exact. Ops that are not known count their weight."""
    name = func._schema.name.partition("::")[2]
    if func is SDPA:
        return flash_attention(args[0], args[1], args[2])
    if func.namespace == "mmswap" and name in _PACKED:
        return unpacked(name, args) + _PIECES
    if name == "convolution":
        return convolution(args[0], args[1], result)
    if name in _PRODUCTS:
        return product(*args[_PRODUCTS[name] : _PRODUCTS[name] + 2])
    if torch.Tag.pointwise in func.tags:
        return casts(args, result)
    if name in _REDUCTIONS:
        return reduction(args[0], result, twice=name == "mean")
    if name in _COPIES:
        return numbers(func, args)
    return copies(args) + weights(args)


def on_a_card(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """CUDA and ROCm: no casts in pointwise ops, no scratch in fused attention; a convolution may reorder its weight and
    input; a matrix product uses the library's standing workspace; what is not known counts its weight.
    """
    name = func._schema.name.partition("::")[2]
    if func.namespace == "mmswap" and name in _PACKED:
        return unpacked(name, args)
    if func is SDPA or torch.Tag.pointwise in func.tags or name in _COPIES or name in _REDUCTIONS or name in _PRODUCTS:
        return 0
    if name == "convolution":
        return nbytes(args[0]) + nbytes(args[1])
    return copies(args) + weights(args)


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def casts(args: tuple[Any, ...], result: Any) -> int:
    """TensorIterator on the CPU: each operand of another dtype than the computation's is copied into it."""
    operands = list(tensors_of(args))
    wide = [operand.dtype for operand in operands if operand.ndim > 0] or [operand.dtype for operand in operands]
    made = next(tensors_of(result), None)
    if made is None or not wide:
        return 0
    common = made.dtype
    if common == torch.bool:
        for dtype in wide:
            common = torch.promote_types(common, dtype)
    size = torch.empty((), dtype=common, device="meta").element_size()
    copied = sum(operand.numel() * size for operand in operands if operand.dtype not in (common, torch.bool))
    return copied + sum(8 + size for arg in args if isinstance(arg, (int, float)) and not isinstance(arg, bool))


def reduction(operand: Tensor, result: Any, twice: bool) -> int:
    """An operand that is summed in another dtype is copied into it; the mean of a 16-bit type is taken in fp32."""
    made = next(tensors_of(result))
    if twice and made.element_size() == 2:
        return 4 * (operand.numel() + made.numel()) + 12
    return (operand.numel() * made.element_size() if operand.dtype != made.dtype else 0) + 12


def copies(args: tuple[Any, ...]) -> int:
    """Kernels that want contiguous operands copy those that are not."""
    return sum(nbytes(operand) for operand in tensors_of(args) if not operand.is_contiguous())


def weights(args: tuple[Any, ...]) -> int:
    """An op that is not known may reorder its weight."""
    return sum(
        nbytes(operand) for operand in tensors_of(args) if isinstance(operand, nn.Parameter) and operand.ndim > 1
    )


def unpacked(name: str, args: tuple[Any, ...]) -> int:
    """A weight in 4 bits, made plain for a call of many rows, in their dtype; in float32 from the processor's own
    layout. Experts are made plain for each row.
    """
    x, words = args[0], args[_PACKED[name]]
    codes = words.numel() * words.element_size() * 2
    if name == "int4pack":
        return 0 if x.dtype == torch.bfloat16 else codes * 9 // 2
    if name == "expert_linear":
        codes = codes // max(1, words.shape[0]) * args[1].shape[0]
    wide = x.dtype == torch.float16 and args[_PACKED[name] + 1].dtype != x.dtype
    return int(codes * (4 if wide else x.element_size()))


def numbers(func: Any, args: tuple[Any, ...]) -> int:
    """A Python number where the schema wants a tensor is wrapped into one of 8 bytes."""
    wants = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    return sum(8 for want, arg in zip(wants, args) if want and isinstance(arg, (int, float)))


def convolution(given: Tensor, weight: Tensor, result: Any) -> int:
    """oneDNN: weight and input reordered, or the blocked result copied; channels-last reorders the weight twice.

    In 16-bit types with AMX a kernel may take hundreds of MiB, in no order that a formula could follow: no bound.
    """
    if given.element_size() == 2:
        whole = result[0].numel() > result.shape[1]  # not the packed patches of one kernel's size each
        return HUGE if whole else 2 * nbytes(weight) + 3 * nbytes(given) // 2 + nbytes(result) + 262144
    last = not given.is_contiguous() or not weight.is_contiguous()
    inputs = nbytes(given) if given.shape[1] > 3 and not last else 0
    return max(nbytes(weight) * (2 if last else 1) + inputs, 0 if last else nbytes(result)) + 65536


def product(left: Tensor, right: Tensor) -> int:
    """oneDNN in 16-bit types: strided operands repacked (expanded ones in full), and for each thread a block of the
    right-hand side and one of fp32 sums. BLAS in fp32 takes nothing from torch's allocator.
    """
    if left.element_size() != 2:
        return 0
    rows, inner = left.shape[-2:]
    repacked = sum(nbytes(operand) for operand in (left, right) if operand.ndim == 3 and not operand.is_contiguous())
    turned = nbytes(left) if left.ndim == 2 and not left.is_contiguous() else 0
    panel = 2 * (inner + 64) * (right.shape[-1] + 64) if right.ndim == 3 else 0
    return repacked + turned + panel + torch.get_num_threads() * (inner * 800 + rows * 2560 + 131072)


def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """`aten/src/ATen/native/cpu/FlashAttentionKernel.cpp`: a block of scores, its statistics and sums for each thread;
    in 16-bit types also keys and values once more, in the blocked layout that some processors want.
    """
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    columns = min(keys, 512)
    if query.element_size() == 4:
        return torch.get_num_threads() * rows * (columns * 4 + 8 + width * 4)
    block, packed = rows * (columns * 6 + 8 + width * 4), 0
    if keys >= 64 and length >= 64:
        block += rows * (columns % 2) * 2 + 2 * columns * width
        packed = 2 * batch * heads * width * (2 * keys + keys % 2)
    return torch.get_num_threads() * block + packed


def likely(args: tuple[Any, ...]) -> int:
    """What is assumed of a library's kernel that can neither be bounded nor measured: its operands, twice."""
    return 2 * sum(nbytes(operand) for operand in tensors_of(args))


def planned_by_library(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the rules give only a bound, because a library chooses the kernel by shape and processor."""
    name = func._schema.name.partition("::")[2]
    if name == "convolution" or func is SDPA:
        return True
    return name in _PRODUCTS and args[_PRODUCTS[name]].element_size() == 2


def work(func: Any, args: tuple[Any, ...], result: Any) -> float:
    """Floating-point operations of convolutions, matrix products and attention; 0 for every other op."""
    name = func._schema.name.partition("::")[2]
    if name == "convolution":
        return float(2 * result.numel() * args[1][0].numel())
    if func is SDPA:
        return float(4 * args[0].numel() * args[1].shape[2])
    if name in _PRODUCTS:
        return float(2 * args[_PRODUCTS[name]].numel() * args[_PRODUCTS[name] + 1].shape[-1])
    return 0.0


def cut(func: Any, args: tuple[Any, ...]) -> tuple[int, Callable[[int], tuple[Any, ...]]]:
    """How many rows or batch entries a call of `work` has, and the call with fewer of them."""
    if func._schema.name == "aten::convolution":
        step = args[3][0]
        if args[0].ndim == 4 and args[0].shape[2] // step > 4:
            return args[0].shape[2] // step, lambda n: (args[0][:, :, : n * step], *args[1:])
        return args[0].shape[0], lambda n: (args[0][:n], *args[1:])
    if func is SDPA:
        return args[0].shape[0], lambda n: (*[operand[:n] for operand in args[:3]], *args[3:])
    left = _PRODUCTS[func._schema.name.partition("::")[2]]
    rows = args[left].shape[-2]

    def fewer(n: int) -> tuple[Any, ...]:
        shrunk = list(args)
        for place in range(left + 1):  # the added operand too, unless it is broadcast along the rows
            if args[place].ndim > 1 and args[place].shape[-2] == rows:
                shrunk[place] = args[place][..., :n, :]
        return tuple(shrunk)

    return rows, fewer
