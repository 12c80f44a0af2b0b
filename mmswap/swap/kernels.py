"""What torch's CPU kernels take for themselves inside one op, by formula: for ops too large to be measured.

Each rule was read off measurements on torch 2.13 and follows the kernel's source; each gives bytes that hold at any
size. `bytes_of(op, args, result)` applies the first that knows the op. Knows operators, not models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mmswap.swap.tracker import tensors_of

aten = torch.ops.aten
SDPA = aten._scaled_dot_product_flash_attention_for_cpu.default

_REDUCTIONS = {"sum", "mean", "prod", "var", "std", "var_mean", "norm", "linalg_vector_norm", "any", "all", "nansum"}
_COPIES = {"clone", "copy_", "_to_copy", "cat", "stack", "index", "index_select", "gather", "scatter", "embedding"}
_COPIES |= {"constant_pad_nd", "repeat", "fill_", "zero_", "masked_fill_", "index_put_", "index_put", "masked_scatter"}
_COPIES |= {"mm", "addmm", "bmm", "baddbmm", "new_zeros", "zeros_like", "empty_like", "ones_like", "roll", "flip"}
_COPIES |= {"repeat_interleave", "slice_scatter", "tril", "triu", "full_like", "lift_fresh", "_reshape_copy"}


def bytes_of(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """An upper bound of the kernel's scratch, in most cases exact. Ops that are not known count their weight."""
    name = func._schema.name.partition("::")[2]
    if func is SDPA:
        return flash_attention(*args[:3], packed=True)
    if name == "convolution":
        return convolution(args[0], args[1], result)
    if torch.Tag.pointwise in func.tags:
        return casts(args, result)
    if name in _REDUCTIONS:
        return reduction(args[0], result, twice=name == "mean")
    if name in _COPIES:
        return numbers(func, args)
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
    copied = sum(
        operand.numel() * size for operand in operands if operand.dtype not in (common, torch.bool)
    )
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
    return sum(nbytes(operand) for operand in tensors_of(args) if isinstance(operand, nn.Parameter) and operand.ndim > 1)


def numbers(func: Any, args: tuple[Any, ...]) -> int:
    """A Python number where the schema wants a tensor is wrapped into one of 8 bytes."""
    wants = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    return sum(8 for want, arg in zip(wants, args) if want and isinstance(arg, (int, float)))


def convolution(given: Tensor, weight: Tensor, result: Any) -> int:
    """oneDNN: weight and input reordered, or the blocked result copied; channels-last reorders the weight twice.

    Bound for fp32. In 16-bit types with AMX a kernel may take a hundred times as much: there only a measurement helps.
    """
    last = not given.is_contiguous() or not weight.is_contiguous()
    inputs = nbytes(given) if given.shape[1] > 3 and not last else 0
    return max(nbytes(weight) * (2 if last else 1) + inputs, 0 if last else nbytes(result)) + (65536 if last else 0)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, packed: bool) -> int:
    """`aten/src/ATen/native/cpu/FlashAttentionKernel.cpp`: a block of scores, its statistics and sums for each thread;
    with 16-bit gemm kernels at hand (`packed`) also keys and values once more, in their blocked layout.
    """
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    columns = min(keys, 512)
    reduced = query.element_size() == 2
    block = rows * (columns * (6 if reduced else 4) + 8 + value.shape[3] * 4)
    if reduced and packed and keys >= 64 and length >= 64:
        block += rows * width * 4 + 4 * width * rows
        extra = 2 * batch * heads * (keys + 8) * width * 2
    else:
        extra = 0
    return torch.get_num_threads() * block + extra
