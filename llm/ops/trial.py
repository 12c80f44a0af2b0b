"""Each op once, as decode calls it: which backend takes it on this device, why no faster one, and whether it is right.

    row, off = trial("rms_norm", torch.device("cpu"), torch.bfloat16)     # row.backend, row.refused

Small random arguments; knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.ops import reference, shuffle
from mmswap.llm.ops.backends import resolve, withdraw
from mmswap.llm.ops.cpu_layout import convert, nibbles
from mmswap.llm.ops.schema import OPS
from mmswap.llm.quant.layout import Packed4, pack

WIDTH, OUT, GROUP = 256, 64, 128
QUERIES, HEADS, CHANNELS, SLOTS = 4, 2, 64, 256
RIGHT = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Largest difference from the reference, of its largest number, at which an op counts as right."""

Make = Callable[[torch.dtype], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """What computes an op: a backend, and (backend, reason) of the faster ones that do not."""

    op: str
    backend: str
    refused: tuple[tuple[str, str], ...]


def ops_on(device: torch.device) -> list[str]:
    """The ops that are asked for there: the processor's layout belongs to the processor."""
    return [op for op in OPS if op != "int4pack" or (device.type == "cpu" and nibbles() is not None)]


def trial(op: str, device: torch.device, dtype: torch.dtype) -> tuple[Row, float]:
    """Calls one op, and the reference on the same arguments: the largest difference, relative to the largest number.

    Raises:
        OptionError: the backend in force is missing on this device.
        Exception: whatever the backend raises.
    """
    own, others = sample(op, device, dtype), sample(op, device, dtype)
    run = resolve(op, *own).run
    got = _written(op, own, run(*own))
    wanted = _written(op, others, reference.IMPLEMENTATIONS[op].run(*others))
    off = max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in zip(got, wanted))
    return _row(op, own), off


def verify(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Tries every op as `trial` does, and withdraws what fails or is wrong until what is left is right.

    Returns:
        A sentence for each backend that an op lost, with the reason; empty when all is well.

    Raises:
        OptionError: the backend in force is missing on this device.
    """
    lost = []
    for op in ops_on(device):
        while (name := _row(op, sample(op, device, dtype)).backend) != reference.NAME:
            why = _fault(op, device, dtype)
            if why is None:
                break
            withdraw(name, op, why)
            lost.append(f"{op} is not computed by {name}: {why}.")
    return lost


def _fault(op: str, device: torch.device, dtype: torch.dtype) -> str | None:
    try:
        _, off = trial(op, device, dtype)
    except Exception as error:  # a compiler's, a driver's: whatever it is, the next backend computes
        lines = str(error).strip().splitlines() or [""]
        return f"it fails here ({type(error).__name__}: {lines[0][:200]})"
    return None if off <= RIGHT[dtype] else f"it is off by {off:.2g} of the largest value"


def sample(op: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """Arguments of one call at one token; equal at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        arguments = _MAKERS[op](dtype)
    return tuple(argument.to(device) if isinstance(argument, Tensor) else argument for argument in arguments)


def _row(op: str, arguments: tuple[Any, ...]) -> Row:
    _, name, refused = resolve(op, *arguments)
    return Row(op, name, refused)


def _written(op: str, arguments: tuple[Any, ...], result: Any) -> tuple[Tensor, ...]:
    if op == "kv_store":
        return arguments[2], arguments[3]
    if op == shuffle.NAME:
        return result[0].view(torch.uint8), *result[1:]  # bytes: of words float32 has the upper half alone
    return result if isinstance(result, tuple) else (result,)


def _weight(*experts: int) -> Packed4:
    rows = OUT * (experts[0] if experts else 1)
    codes = torch.randint(0, 16, (rows, WIDTH), dtype=torch.uint8)
    return pack(codes, torch.rand(rows, WIDTH // GROUP).half() * 0.02, group_size=GROUP)


def _w4a16(dtype: torch.dtype) -> tuple[Any, ...]:
    weight = _weight()
    return _x(dtype), weight.words, weight.scales, weight.zeros, None, None, WIDTH, GROUP


def _int4pack(dtype: torch.dtype) -> tuple[Any, ...]:
    made = convert(_weight())
    return _x(dtype), made.packed, made.scale_zero, None, None, WIDTH, made.group_size


def _expert_linear(dtype: torch.dtype) -> tuple[Any, ...]:
    weight = _weight(4)
    parts = (tensor.view(4, OUT, -1) for tensor in (weight.words, weight.scales, weight.zeros))
    return _x(dtype), torch.tensor([3, 1]), *parts, None, WIDTH, GROUP


def _gptq_shuffle(dtype: torch.dtype) -> tuple[Any, ...]:
    """Groups out of their order, the last one in part, and a slot without a column."""
    columns, groups, wide = WIDTH - 24, WIDTH // GROUP, (1 << 31) - 1
    words = [
        torch.randint(-wide, wide, shape, dtype=torch.int32) for shape in ((columns // 8, OUT), (groups, OUT // 8))
    ]
    source = torch.cat((torch.randperm(columns), torch.full((24,), -1))).to(torch.int32)
    return *words, torch.rand(groups, OUT).to(dtype), source, torch.tensor([1, 0], dtype=torch.int32), columns, GROUP, 1


def _rotary(dtype: torch.dtype) -> tuple[Any, ...]:
    angles = torch.randn(1, 1, CHANNELS)
    return _heads(QUERIES, dtype), _heads(HEADS, dtype), angles.cos().to(dtype), angles.sin().to(dtype), []


def _kv_store(dtype: torch.dtype) -> tuple[Any, ...]:
    k, v, start = _heads(HEADS, dtype), _heads(HEADS, dtype), torch.tensor([SLOTS + 3], dtype=torch.int32)
    return k, v, *(torch.zeros(1, HEADS, SLOTS, CHANNELS, dtype=dtype) for _ in range(2)), start, None, None, None


def _decode_attention(dtype: torch.dtype) -> tuple[Any, ...]:
    keys, values = (torch.randn(1, HEADS, SLOTS, CHANNELS).to(dtype) for _ in range(2))
    length = torch.tensor([SLOTS - 7], dtype=torch.int32)
    return _heads(QUERIES, dtype), keys, values, length, CHANNELS**-0.5, 0.0, None, None, None, None


def _heads(count: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, count, 1, CHANNELS).to(dtype)


def _x(dtype: torch.dtype, width: int = WIDTH) -> Tensor:
    return torch.randn(1, width).to(dtype)


def _norm(dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.ones(WIDTH, dtype=dtype), 1e-6, 0.0, True


_MAKERS: dict[str, Make] = {
    "w4a16": _w4a16,
    "int4pack": _int4pack,
    "linear": lambda dtype: (_x(dtype), torch.randn(OUT, WIDTH).to(dtype), None),
    "expert_linear": _expert_linear,
    "rms_norm": lambda dtype: (_x(dtype), *_norm(dtype)),
    "fused_add_rms_norm": lambda dtype: (_x(dtype), _x(dtype), *_norm(dtype)),
    "silu_and_mul": lambda dtype: (_x(dtype),),
    "gelu_and_mul": lambda dtype: (_x(dtype), "tanh"),
    "rotary": _rotary,
    "kv_store": _kv_store,
    "decode_attention": _decode_attention,
    shuffle.NAME: _gptq_shuffle,
}
