"""Every kernel on buffers of exactly the bytes that its header asks for, then with one of them cut short.

python bounds.py LIBRARY      # started by test_hip_bounds.py with the address sanitizer loaded; prints a line a case

Each case runs in a process of its own (fork): `clean` must end with 0, `short NAME` must be reported.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ERROR = 99  # what ASAN_OPTIONS=exitcode= says
F16, BF16, F32, E4M3, E5M2, I8 = range(6)
_WIDTH = (2, 2, 4, 1, 1, 1)
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


def interface() -> Any:
    """`hip_ext/interface.py` without the package, which would bring torch in under the sanitizer."""
    folder = Path(__file__).parents[2] / "hip_ext"
    for name in ("recipe", "interface"):
        spec = importlib.util.spec_from_file_location(f"mmswap.hip_ext.{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules["mmswap.hip_ext.interface"]


def numbers(count: int, dtype: int = F16) -> bytes:
    return bytes(count * _WIDTH[dtype])


def ints(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


Case = tuple[str, str, dict[str, bytes], dict[str, Any]]


def act() -> Case:
    buffers = {"gate_up": numbers(2 * 2 * 1037), "out": numbers(2 * 1037)}
    return "mms_silu_and_mul", "mms_act", buffers, {"stride": 2074, "rows": 2, "features": 1037}


def norm(features: int, launcher: str) -> Case:
    row = numbers(3 * features, BF16)
    buffers = {"x": row, "weight": numbers(features, F32), "out": row}
    if launcher == "mms_fused_add_rms_norm":
        buffers |= {"residual": row, "total": row}
    fields = {"x_stride": features, "residual_stride": features, "rows": 3, "features": features, "eps": 1e-6}
    return launcher, "mms_norm", buffers, {**fields, "dtype": BF16, "weight_dtype": F32}


def rotary() -> Case:
    q, k, angles = numbers(3 * 2 * 20), numbers(2 * 2 * 20), numbers(3 * 2 * 12)
    buffers = {"q": q, "k": k, "cos": angles, "sin": angles, "q_out": q, "k_out": k}
    strides = {"q_batch": 120, "q_head": 40, "q_token": 20, "k_batch": 80, "k_head": 40, "k_token": 20}
    fields = {"batch": 1, "q_heads": 3, "k_heads": 2, "tokens": 2, "channels": 20, "turned": 12, "axes": 3}
    section = (ctypes.c_int32 * 8)(1, 4, 1)
    return "mms_rotary_embedding", "mms_rotary", buffers, {
        **strides, **fields, "sections": 3, "section": section, "axis": 24, "angle_token": 12,
    }  # fmt: skip


def w4(launcher: str, rows: int, columns: int, group: int, *, ordered: bool) -> Case:
    padded = -(-columns // 128) * 128
    groups, outputs = -(-padded // group), 19
    buffers = {
        "x": numbers(rows * columns), "words": bytes(outputs * padded // 2), "scales": numbers(outputs * groups),
        "zeros": bytes(outputs * groups), "bias": numbers(outputs), "out": numbers(rows * outputs),
    }  # fmt: skip
    if ordered or columns != padded:
        buffers["scratch"] = numbers(rows * padded)
    if ordered:
        buffers["order"] = ints(*range(columns))
    fields = {"rows": rows, "outputs": outputs, "columns": columns, "slots": columns, "padded": padded}
    return launcher, "mms_w4", buffers, {**fields, "x_stride": columns, "group_size": group, "groups": groups}


def experts(*, shared: bool) -> Case:
    """The second of three experts, and the last; columns that fill no block."""
    padded, groups, outputs = 256, 8, 19
    buffers = {
        "x": numbers(200 * (1 if shared else 2)), "experts": ints(1, 2), "words": bytes(3 * outputs * padded // 2),
        "scales": numbers(3 * outputs * groups), "zeros": bytes(3 * outputs * groups), "bias": numbers(3 * outputs),
        "out": numbers(2 * outputs), "scratch": numbers((1 if shared else 2) * padded),
    }  # fmt: skip
    fields = {"x_stride": 0 if shared else 200, "rows": 2, "outputs": outputs, "columns": 200, "padded": padded}
    return "mms_experts_gemv", "mms_experts", buffers, {**fields, "group_size": 32, "groups": groups}


def linear(rows: int, columns: int) -> Case:
    buffers = {
        "x": numbers(rows * columns), "weight": numbers(7 * columns), "bias": numbers(7), "out": numbers(rows * 7),
    }  # fmt: skip
    fields = {"x_stride": columns, "weight_stride": columns, "rows": rows, "outputs": 7, "columns": columns}
    return "mms_linear_gemv", "mms_linear", buffers, fields


def gptq() -> Case:
    buffers = {
        "qweight": bytes(4 * 17 * 13), "qzeros": bytes(4 * 9 * 2), "scales": numbers(9 * 13),
        "source": ints(*range(136), *[-1] * 120), "table": ints(*range(9)),
        "words": bytes(13 * 128), "scales_out": numbers(13 * 16), "zeros_out": bytes(13 * 16),
    }  # fmt: skip
    fields = {"columns": 136, "outputs": 13, "padded": 256, "group_size": 16, "groups_in": 9, "groups_out": 16}
    return "mms_gptq_shuffle", "mms_gptq", buffers, {**fields, "stored": 9}


def kv(kind: int) -> Case:
    buffers = {
        "k": numbers(2 * 5 * 40), "v": numbers(2 * 5 * 24), "start": ints(2), "keys": numbers(2 * 4 * 40, kind),
        "values": numbers(2 * 4 * 24, kind),
    }  # fmt: skip
    if kind == I8:
        buffers |= {"k_scale": numbers(80, F32), "v_scale": numbers(8, F32), "k_offset": numbers(80)}
    if kind == E4M3:
        buffers |= {"k_scale": numbers(80, F32), "v_scale": numbers(2, F32)}
    fields = {"k_head": 200, "k_token": 40, "v_head": 120, "v_token": 24, "keys_head": 160, "keys_slot": 40}
    fields |= {
        "values_head": 96,
        "values_slot": 24,
        "scale_head": 4 if kind == I8 else 1,
        "scale_slot": int(kind == I8),
    }
    fields |= {"batch": 1, "heads": 2, "tokens": 5, "slots": 4, "k_channels": 40, "v_channels": 24}
    return "mms_kv_store", "mms_kv", buffers, {
        **fields, "cache_dtype": kind, "k_scale_dtype": F32, "v_scale_dtype": F32,
    }  # fmt: skip


def attention(kind: int, group: int, width: int, wide: int) -> Case:
    slots, rows = 37, 2 * group
    buffers = {
        "q": numbers(rows * width), "keys": numbers(2 * slots * width, kind), "values": numbers(2 * slots * wide, kind),
        "length": ints(slots), "mask": b"\1" * slots, "sinks": numbers(rows), "out": numbers(rows * wide),
        "scratch": numbers(rows * 3 * (wide + 2), F32),
    }  # fmt: skip
    if kind > F32:
        buffers["k_scale"] = numbers(2 * width, F32)
        buffers["v_scale"] = numbers(2 * slots if kind == I8 else 2, F32)
    fields = {"q_head": width, "keys_head": slots * width, "keys_slot": width, "values_head": slots * wide}
    fields |= {"values_slot": wide, "scale_head": slots if kind == I8 else 1, "scale_slot": int(kind == I8)}
    fields |= {"batch": 1, "heads": 2, "group": group, "slots": slots, "k_channels": width, "v_channels": wide}
    return "mms_decode_attention", "mms_attention", buffers, {
        **fields, "cache_dtype": kind, "k_scale_dtype": F32, "v_scale_dtype": F32, "splits": 3, "scale": 1.0,
    }  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    "act": act,
    "norm": lambda: norm(2061, "mms_rms_norm"),
    "norm by eight": lambda: norm(2064, "mms_fused_add_rms_norm"),
    "rotary": rotary,
    "gemv": lambda: w4("mms_w4_gemv", 1, 1280, 128, ordered=False),
    "gemv of four rows": lambda: w4("mms_w4_gemv", 3, 200, 16, ordered=True),
    "gemm": lambda: w4("mms_w4_gemm", 18, 256, 32, ordered=False),
    "gemm of blocks": lambda: w4("mms_w4_gemm", 5, 100, 128, ordered=True),
    "experts": lambda: experts(shared=False),
    "experts of one row": lambda: experts(shared=True),
    "linear": lambda: linear(1, 2056),
    "linear, uneven": lambda: linear(3, 259),
    "gptq": gptq,
    **{f"kv {kind}": lambda kind=kind: kv(kind) for kind in (F16, F32, E4M3, I8)},  # type: ignore[misc]
    "attention f16": lambda: attention(F16, 1, 40, 24),
    "attention e4m3": lambda: attention(E4M3, 5, 72, 64),
    "attention i8": lambda: attention(I8, 1, 320, 264),
}
WMMA = {"gemm": (0, 11, 12), "gemm of blocks": (0, 11, 12)}


def run(library: Any, structs: Any, case: Case, short: str) -> int:
    """The exit status of the case, with `short` one number shorter."""
    launcher, struct, buffers, fields = case
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    arguments = structs[struct](**fields)
    for name, content in buffers.items():
        size = len(content) - (name == short)
        setattr(arguments, name, _libc.malloc(size))
        ctypes.memmove(getattr(arguments, name), content, size)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os._exit(getattr(library, launcher)(ctypes.byref(arguments), None))


def main(path: str) -> None:
    structs, library = interface().STRUCTS, ctypes.CDLL(path)
    units = ctypes.c_int.in_dll(library, "mms_cpu_wmma")
    for name, make in CASES.items():
        for units.value in WMMA.get(name, (0,)):
            case = make()
            print(f"{name} {units.value}", "clean", run(library, structs, case, ""))
            for buffer in case[2]:
                print(f"{name} {units.value}", buffer, run(library, structs, case, buffer))


if __name__ == "__main__":
    main(sys.argv[1])
