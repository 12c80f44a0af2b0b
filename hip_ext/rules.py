"""Which kernels a launcher starts, and on how many blocks: the rules of `csrc/launch.h`, where there is no launcher.

    LAUNCHERS["mms_rms_norm"](arguments) -> [Start("mms_k_norm", 7, 1, 256, arguments)]

Arguments have passed an op's `refuses`; what C checks beyond that is not checked again. They are completed in place, as
a launcher completes its copy. A test holds both to the same starts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from mmswap.hip_ext.interface import DTYPES, STRUCTS, constants

Rule = Callable[[Any], "list[Start]"]
_NAMES = {code: name.lower() for name, code in DTYPES.items()}
_WAVES = 4  # of a block of a product
_FULL = 2048  # waves that fill a card


class Start(NamedTuple):
    """One kernel: its name, blocks in x and y, threads of a block, and its one argument."""

    kernel: str
    x: int
    y: int
    threads: int
    arguments: ctypes.Structure


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


@cache
def _constant(name: str) -> int:
    return constants()[name]


def _act(a: Any) -> list[Start]:
    pieces = _ceil(a.features, _constant("MMS_ACT_PIECE"))
    return [Start("mms_k_act", a.rows, pieces, _constant("MMS_ACT_THREADS"), a)]


def _norm(a: Any) -> list[Start]:
    return [Start("mms_k_norm", a.rows, 1, _constant("MMS_NORM_THREADS"), a)]


def _rotary(a: Any) -> list[Start]:
    waves = _constant("MMS_ROTARY_WAVES")
    items = a.batch * a.tokens * (a.q_heads + a.k_heads)
    return [Start("mms_k_rotary", _ceil(items, waves), 1, waves * 32, a)]


def _anew(a: Any) -> bool:
    """x of a product with 4 bits has to be laid anew: in another order, or for reads of 16 bytes."""
    return bool(a.order or a.columns != a.padded or a.x % 16 or (a.rows > 1 and a.x_stride % 8))


def w4_scratch(a: Any) -> int:
    """Bytes, as `mms_w4_scratch`."""
    return a.rows * a.padded * 2 if _anew(a) else 0


def _prepared(a: Any) -> list[Start]:
    """Completes the arguments of a product with 4 bits; what has to run before it."""
    group = min(a.group_size, a.padded)
    a.magic = 0 if group == 16 else (1 << 32) // (group // 16) + 1
    a.split = 1
    if not _anew(a):
        return []
    threads = _constant("MMS_TAKE_THREADS")
    take = STRUCTS["mms_take"](a.x, a.order, a.scratch, a.x_stride, a.rows, a.columns, a.slots, a.padded)
    a.x = a.scratch
    a.x_stride = a.columns = a.padded
    return [Start("mms_k_take", _ceil(a.padded, threads), a.rows, threads, take)]


def _split(waves: int, columns: int, step: int) -> int:
    """Waves that share the columns of some rows."""
    split = 1
    while split < _WAVES and waves * split < _FULL and columns > step * split:
        split *= 2
    return split


def _weight_rows(rows: int) -> int:
    """Rows of the weight that a wave takes."""
    return 4 if rows == 1 else 2


def _span(a: Any) -> int:
    """Columns that surely share a scale."""
    return 128 if a.group_size >= a.padded or a.group_size % 128 == 0 else 16


def _w4_gemv(a: Any) -> list[Start]:
    before = _prepared(a)
    fine = 64 if _span(a) == 16 and a.group_size % 64 == 0 else _span(a)
    kind = f"m1_g{fine}_s{a.scale_dtype}" if a.rows == 1 else f"m4_g{_span(a)}_s"
    waves = _ceil(a.outputs, _weight_rows(a.rows))
    a.split = _split(waves, a.padded, 1024)
    name = f"mms_k_w4_gemv_{_NAMES[a.dtype]}_{kind}"
    return [*before, Start(name, _ceil(waves * a.split, _WAVES), 1, 128, a)]


def _w4_gemm(a: Any) -> list[Start]:
    before = _prepared(a)
    return [
        *before,
        Start(f"mms_k_w4_gemm_{_NAMES[a.dtype]}_g{_span(a)}", _ceil(a.outputs, 16), _ceil(a.rows, 16), 128, a),
    ]


def _expert_share(a: Any) -> Any:
    """An expert's share as a product of its own."""
    rows = a.rows if a.x_stride else 1
    return STRUCTS["mms_w4"](
        x=a.x, scratch=a.scratch, x_stride=a.x_stride, rows=rows, outputs=a.outputs, columns=a.columns, slots=a.columns,
        padded=a.padded, group_size=a.group_size,
    )  # fmt: skip


def experts_scratch(a: Any) -> int:
    """As `mms_experts_scratch`."""
    return w4_scratch(_expert_share(a))


def _experts(a: Any) -> list[Start]:
    share = _expert_share(a)
    before = _prepared(share)
    a.x, a.magic = share.x, share.magic
    if a.x_stride:
        a.x_stride = share.x_stride
    waves = _ceil(a.outputs, _weight_rows(1))
    a.split = _split(waves * a.rows, a.padded, 1024)
    name = f"mms_k_experts_{_NAMES[a.dtype]}_g{_span(a)}"
    return [*before, Start(name, _ceil(waves * a.split, _WAVES), a.rows, 128, a)]


def _linear(a: Any) -> list[Start]:
    waves = _ceil(a.outputs, _weight_rows(a.rows))
    whole = a.rows == 1 or a.x_stride % 8 == 0
    a.vector = not ((a.x or 0) % 16 or (a.weight or 0) % 16) and whole and (a.outputs == 1 or a.weight_stride % 8 == 0)
    a.split = _split(waves, a.columns, 256)
    name = f"mms_k_linear_{_NAMES[a.dtype]}_m{1 if a.rows == 1 else 4}"
    return [Start(name, _ceil(waves * a.split, _constant("MMS_LINEAR_WAVES")), 1, 128, a)]


def _gptq(a: Any) -> list[Start]:
    threads = _constant("MMS_GPTQ_THREADS")
    return [Start("mms_k_gptq", _ceil(a.outputs, threads), a.padded // 8 + a.groups_out, threads, a)]


def _kv(a: Any) -> list[Start]:
    waves = _constant("MMS_KV_WAVES")
    items = a.batch * a.heads * min(a.tokens, a.slots)
    return [Start("mms_k_kv", _ceil(items, waves), 1, waves * 32, a)]


def attention_splits(batch: int, heads: int, group: int, slots: int, processors: int) -> int:
    """As `mms_attention_splits`."""
    if min(batch, heads, group, slots) <= 0:
        return 1
    blocks = batch * heads * (_ceil(group, 4) if group > 1 else 1)
    return min(_ceil(4 * max(processors, 1), blocks), _ceil(slots, 128), 64)


def _attention(a: Any) -> list[Start]:
    widest = max(a.k_channels, a.v_channels)
    a.lanes = 1
    while a.lanes < 32 and a.lanes * 8 < widest:
        a.lanes *= 2
    kind = "wide" if widest > 256 else "h4" if a.group > 1 else "h1"
    x = a.batch * a.heads * _ceil(a.group, 4 if kind == "h4" else 1)
    rows = a.batch * a.heads * a.group
    name = f"mms_k_attention_{_NAMES[a.cache_dtype]}_{kind}"
    return [
        Start(name, x, a.splits, _constant("MMS_ATTENTION_THREADS"), a),
        Start("mms_k_join", rows, 1, _constant("MMS_JOIN_THREADS"), a),
    ]


LAUNCHERS: dict[str, Rule] = {
    "mms_silu_and_mul": _act,
    "mms_gelu_and_mul": _act,
    "mms_rms_norm": _norm,
    "mms_fused_add_rms_norm": _norm,
    "mms_rotary_embedding": _rotary,
    "mms_w4_gemv": _w4_gemv,
    "mms_w4_gemm": _w4_gemm,
    "mms_experts_gemv": _experts,
    "mms_linear_gemv": _linear,
    "mms_gptq_shuffle": _gptq,
    "mms_kv_store": _kv,
    "mms_decode_attention": _attention,
}
