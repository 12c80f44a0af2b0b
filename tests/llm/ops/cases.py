"""Arguments for every op, of odd shapes, drawn from a seed: `draw("rms_norm", torch.float16, Random(3))`.

Every third tensor is a view that is not contiguous, by the draw: a backend must refuse such, or be right.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from mmswap.llm.ops.cpu_layout import convert
from mmswap.llm.ops.trial import ops_on
from mmswap.llm.quant import Packed4, pack

HERE = ops_on(torch.device("cpu"))
"""The ops that this processor has: where torch has no fast int4 kernel, there is no `int4pack`."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = (*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def draw(op: str, dtype: torch.dtype, random: Random, *, views: bool = True) -> tuple[Any, ...]:
    """Arguments of one call. `views`: some tensors are strided."""
    torch.manual_seed(random.randrange(1 << 30))
    arguments = _MAKERS[op](dtype, random)
    if not views:
        return arguments
    return tuple(_viewed(a, random) if isinstance(a, Tensor) and random.random() < 0.3 else a for a in arguments)


def _viewed(tensor: Tensor, random: Random) -> Tensor:
    """The same numbers, in a wider tensor or every second place of one."""
    if not tensor.dim() or (tensor.dim() == 1 and len(tensor) == 1):
        return tensor
    step = random.choice((1, 1, 2))
    wide = tensor.new_zeros((*tensor.shape[:-1], tensor.shape[-1] * step + 3))
    view = wide[..., 1 : 1 + tensor.shape[-1] * step : step]
    view.copy_(tensor)
    return view


def _leading(random: Random) -> tuple[int, ...]:
    return random.choice(((1, 1), (1,), (), (3,), (1, 7), (2, 17), (1, 90), (0,), (2, 0), (1, 1, 1, 2)))


def _maybe(random: Random, tensor: Tensor) -> Tensor | None:
    return tensor if random.random() < 0.6 else None


def packed4(out: int, columns: int, random: Random, *, group: int = 0, reorder: bool = False) -> Packed4:
    """A weight of uneven scales and zero points."""
    group = group or random.choice((32, 64, 128, -1))
    count = -(-columns // group) if group > 0 else 1
    codes = torch.randint(0, 16, (out, columns), dtype=torch.uint8)
    scales = (torch.rand(out, count) * 0.02 + 0.001).to(random.choice(DTYPES))
    zeros = None if random.random() < 0.4 else torch.randint(0, 16, (out, count), dtype=torch.uint8)
    groups = torch.randint(0, count, (columns,)) if reorder else None
    return pack(codes, scales, zeros, group_size=group, groups=groups)


def _w4a16(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    out, columns = random.choice((1, 5, 16, 48, 80)), random.choice((8, 40, 100, 128, 136, 300))
    weight = packed4(out, columns, random, reorder=random.random() < 0.3)
    x, bias = torch.randn(*_leading(random), columns).to(dtype), _maybe(random, torch.randn(out))
    return x, weight.words, weight.scales, weight.zeros, weight.order, bias, columns, weight.group_size


def _int4pack(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    out, columns = random.choice((16, 48, 64, 112)), random.choice((32, 40, 100, 128, 192, 300, 576))
    weight = convert(packed4(out, columns, random, reorder=random.random() < 0.3))
    x, bias = torch.randn(*_leading(random), columns).to(dtype), _maybe(random, torch.randn(out))
    return x, weight.packed, weight.scale_zero, weight.order, bias, columns, weight.group_size


def _linear(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    out, columns = random.choice((1, 7, 64, 130)), random.choice((1, 8, 33, 257, 4100))
    weight = torch.randn(out, columns).to(dtype)
    return torch.randn(*_leading(random), columns).to(dtype), weight, _maybe(random, torch.randn(out).to(dtype))


def _expert_linear(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    experts, out, columns = random.choice((1, 4, 9)), random.choice((1, 16, 33)), random.choice((40, 128, 200))
    weights = [packed4(out, columns, random, group=64) for _ in range(experts)]
    stacked = [torch.stack([getattr(w, n) for w in weights]) for n in ("words", "zeros")]
    scales = torch.stack([weight.scales.float() for weight in weights]).to(random.choice(DTYPES))
    active = torch.randint(0, experts, (random.choice((0, 1, 2, 8)),), dtype=random.choice((torch.int32, torch.int64)))
    rows = random.choice((1, len(active)))
    x, bias = torch.randn(rows, columns).to(dtype), _maybe(random, torch.randn(experts, out))
    return x, active, stacked[0], scales, stacked[1], bias, columns, weights[0].group_size


def _norm(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    width = random.choice((1, 7, 64, 129, 576))
    x = (torch.randn(*_leading(random), width) * random.choice((1e-3, 1.0, 50.0))).to(dtype)
    weight = _maybe(random, torch.randn(width).to(dtype if random.random() < 0.8 else torch.float32))
    return x, weight, random.choice((1e-6, 1e-5)), random.choice((0.0, 1.0)), random.random() < 0.5


def _fused(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    x, *rest = _norm(dtype, random)
    return x, torch.randn(x.shape).to(dtype), *rest


def _gate_up(dtype: torch.dtype, random: Random) -> Tensor:
    width = random.choice((1, 5, 64, 129)) * 2
    return (torch.randn(*_leading(random), width) * random.choice((1.0, 8.0))).to(dtype)


def _rotary(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    batch, tokens, width = random.choice((1, 1, 3)), random.choice((1, 1, 5, 0)), random.choice((8, 24, 64))
    turned = random.choice((width, width, width // 2))
    q, k = (torch.randn(batch, heads, tokens, width).to(dtype) for heads in (random.choice((1, 4, 9)), 3))
    sections = random.choice(([], [], [1, turned // 2 - 2, 1])) if turned > 4 else []
    angles = torch.randn(*((3,) if sections else ()), random.choice((1, batch)), tokens, turned)
    kind = dtype if random.random() < 0.8 else torch.float32
    return q, k, angles.cos().to(kind), angles.sin().to(kind), sections


def _cache(kind: torch.dtype, random: Random) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Keys, values, and their scales, full of numbers."""
    batch, heads, slots = random.choice((1, 1, 2)), random.choice((1, 2, 3)), random.choice((1, 5, 64, 130))
    width = random.choice((8, 40, 64))
    shape, other = (batch, heads, slots, width), (batch, heads, slots, random.choice((width, width, 24)))
    if kind == torch.int8:
        keys, values = (torch.randint(-127, 128, s, dtype=torch.int8) for s in (shape, other))
        return keys, values, torch.rand(heads, width) * 0.02, torch.rand(batch, heads, slots) * 0.02
    keys, values = torch.randn(shape).to(kind), torch.randn(other).to(kind)
    if kind.itemsize > 1:
        return keys, values, None, None
    return keys, values, _maybe(random, torch.rand(heads, width) + 0.5), _maybe(random, torch.rand(heads, 1) + 0.5)


def _kv_store(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    kind = random.choice(KINDS)
    keys, values, k_scale, v_scale = _cache(kind, random)
    batch, heads, slots, width = keys.shape
    tokens = random.choice((0, 1, 1, 3, slots, slots + 2))
    k = torch.randn(batch, heads, tokens, width).to(dtype) * 3
    v = torch.randn(batch, heads, tokens, values.shape[3]).to(dtype) * 300
    if kind.itemsize == 1 and tokens:
        v[:, :, 0], k[:, 0, 0, 0] = 0, 6e4
    start = torch.randint(0, 3 * slots, (random.choice((1, batch)),), dtype=torch.int32)
    offset = _maybe(random, torch.randn(heads, width)) if kind.itemsize == 1 else None
    return k, v, keys, values, start, offset, k_scale, v_scale


def _decode_attention(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    kind = random.choice((dtype, dtype, *KINDS))
    keys, values, k_scale, v_scale = _cache(kind, random)
    batch, heads, slots, width = keys.shape
    q = torch.randn(batch, heads * random.choice((1, 3, 7)), 1, width).to(dtype)
    length = torch.randint(0, slots + 3, (random.choice((1, batch)),), dtype=torch.int32)
    sinks = _maybe(random, torch.randn(q.shape[1]).to(dtype)) if random.random() < 0.3 else None
    mask = torch.rand(batch, slots) < 0.5 if random.random() < 0.3 else None
    cap = random.choice((0.0, 0.0, 5.0))
    _spoil(keys, values, v_scale, int(length.max()))
    return q, keys, values, length, width**-0.5, cap, k_scale, v_scale, sinks, mask


def _spoil(keys: Tensor, values: Tensor, v_scale: Tensor | None, held: int) -> None:
    """What lies in slots without a token may be anything, and must not be looked at."""
    if keys.dtype != torch.int8:
        keys[:, :, held:], values[:, :, held:] = torch.nan, torch.nan
    elif v_scale is not None:
        v_scale[:, :, held:] = torch.nan


def _gptq_shuffle(dtype: torch.dtype, random: Random) -> tuple[Any, ...]:
    """Columns in their order or not, groups that are split, slots without a column, outputs that fill no word."""
    columns, out, group = random.choice((1, 40, 128, 300)), random.choice((1, 8, 33)), random.choice((16, 64, 512))
    groups = random.choice((1, 2))
    wide = 1 << 31
    shapes = ((-(-columns // 8), out), (groups, -(-out // 8)))
    words, zeros = (torch.randint(-wide, wide, shape, dtype=torch.int32) for shape in shapes)
    source, table, padded = None, None, -(-columns // 128) * 128
    if random.random() < 0.6:
        padded += random.choice((0, 128))
        source = torch.full((padded,), -1, dtype=torch.int32)
        source[torch.randperm(padded)[:columns]] = torch.randperm(columns).to(torch.int32)
        table = torch.randint(0, groups, (random.randint(1, -(-padded // group)),), dtype=torch.int32)
    if table is None and groups > -(-padded // group):
        words, zeros, groups = words, zeros[:1].contiguous(), 1
    scales = torch.rand(groups, out).to(dtype)
    return words, _maybe(random, zeros), scales, source, table, columns, group, random.choice((0, 1, 2))


_MAKERS: dict[str, Callable[[torch.dtype, Random], tuple[Any, ...]]] = {
    "w4a16": _w4a16,
    "int4pack": _int4pack,
    "linear": _linear,
    "expert_linear": _expert_linear,
    "rms_norm": _norm,
    "fused_add_rms_norm": _fused,
    "silu_and_mul": lambda dtype, random: (_gate_up(dtype, random),),
    "gelu_and_mul": lambda dtype, random: (_gate_up(dtype, random), random.choice(("none", "tanh"))),
    "rotary": _rotary,
    "kv_store": _kv_store,
    "decode_attention": _decode_attention,
    "gptq_shuffle": _gptq_shuffle,
}
