"""Each op on the processor at one token: the backend's path, the reference, and plain torch as a model calls it.

    python benchmarks/ops_cpu.py                 # writes benchmarks/ops_cpu.csv; about 40 s
    python benchmarks/ops_cpu.py --threads 2

Times are microseconds of one call: p20, p50, p80. `dispatch` is what `torch.ops.mmswap` and the choice of a backend add
to a call. `int4pack` rows by M show from where on unpacking the weight wins. `load`: processes that wanted to run, of
others too; where they were more than the cores, p20 of calls below a millisecond is what to trust.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.nn import functional

from mmswap.llm.ops import OPS, reference, resolve
from mmswap.llm.ops.backends import chooser
from mmswap.llm.ops.cpu_layout import convert, dequantise
from mmswap.llm.ops.trial import sample
from mmswap.llm.quant import pack

HERE = Path(__file__).parent
COLUMNS = (
    "date",
    "device",
    "torch",
    "python",
    "threads",
    "load",
    "op",
    "shape",
    "dtype",
    "how",
    "p20_us",
    "p50_us",
    "p80_us",
)
MODELS = {"0.13B": (576, 9, 3, 64, 1536, 49152), "0.5B": (896, 14, 2, 64, 4864, 151936)}
SLOTS, HELD = 1024, 300
SECONDS = 0.12
Calls = Iterator[tuple[str, str, str, Callable[[], Any]]]  # op, shape, how, call


def processor() -> str:
    """The name of the CPU."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def paths(op: str, shape: str, *arguments: Any, plain: Callable[[], Any] | None = None) -> Calls:
    """The same arguments by every way."""
    run = resolve(op, *arguments).run
    yield op, shape, "cpu", lambda: run(*arguments)
    yield op, shape, "reference", lambda: reference.IMPLEMENTATIONS[op].run(*arguments)
    if plain is not None:
        yield op, shape, "plain torch", plain


def small_ops(name: str, dtype: torch.dtype) -> Calls:
    hidden, queries, heads, channels, inner, _ = MODELS[name]
    x, residual, weight = (torch.randn(1, hidden).to(dtype), torch.randn(1, hidden).to(dtype), torch.ones(hidden))
    weight = weight.to(dtype)
    yield from paths("rms_norm", str(hidden), x, weight, 1e-6, 0.0, True, plain=lambda: llama_norm(x, weight))
    yield from paths("fused_add_rms_norm", str(hidden), x, residual, weight, 1e-6, 0.0, True)
    both = torch.randn(1, 2 * inner).to(dtype)
    gate, up = both.chunk(2, -1)
    yield from paths("silu_and_mul", str(inner), both, plain=lambda: functional.silu(gate) * up)
    yield from paths("gelu_and_mul", str(inner), both, "tanh")
    q, k, v = (torch.randn(1, count, 1, channels).to(dtype) for count in (queries, heads, heads))
    cos, sin = (torch.randn(1, 1, channels).to(dtype) for _ in range(2))
    shape = f"{queries}/{heads} x {channels}"
    yield from paths("rotary", shape, q, k, cos, sin, [], plain=lambda: (turned(q, cos, sin), turned(k, cos, sin)))
    for kind in (dtype, torch.int8, torch.float8_e4m3fn):
        yield from cache_ops(f"{shape}, {HELD} held, {str(kind)[6:]}", q, k, v, kind)


def cache_ops(shape: str, q: Tensor, k: Tensor, v: Tensor, kind: torch.dtype) -> Calls:
    heads, channels = k.shape[1], k.shape[3]
    keys, values = (torch.randn(1, heads, SLOTS, channels).to(kind) for _ in range(2))
    k_scale = None if kind.itemsize > 1 else torch.ones(heads, channels)
    v_scale = torch.ones(1, heads, SLOTS) if kind == torch.int8 else None
    start, length = (torch.tensor([number], dtype=torch.int32) for number in (HELD, HELD))
    yield from paths("kv_store", shape, k, v, keys, values, start, None, k_scale, v_scale)
    scale = channels**-0.5
    seen = (keys[:, :, :HELD], values[:, :, :HELD])
    plain = lambda: functional.scaled_dot_product_attention(q, *seen, scale=scale, enable_gqa=True)  # noqa: E731
    plain = plain if kind == q.dtype else None
    yield from paths(
        "decode_attention", shape, q, keys, values, length, scale, 0.0, k_scale, v_scale, None, None, plain=plain
    )


def linears(name: str, dtype: torch.dtype) -> Calls:
    hidden, _, _, _, inner, words = MODELS[name]
    for out, columns in ((hidden, hidden), (inner, hidden), (hidden, inner), (words // 4, hidden)):
        x, dense = torch.randn(1, columns).to(dtype), torch.randn(out, columns).to(dtype)
        shape = f"1 x {columns} -> {out}"
        yield from paths("linear", shape, x, dense, None)
        if dtype == torch.bfloat16 and out != words // 4:
            yield from int4(shape, x, out)
        elif out == hidden == columns:
            weight = packed4(out, columns)
            more = (weight.words, weight.scales, weight.zeros, None, None, columns, 128)
            yield from paths("w4a16", shape, x, *more)


def packed4(out: int, columns: int) -> Any:
    codes = torch.randint(0, 16, (out, columns), dtype=torch.uint8)
    return pack(codes, torch.rand(out, -(-columns // 128)).bfloat16(), group_size=128)


def int4(shape: str, x: Tensor, out: int) -> Calls:
    columns = x.shape[1]
    made = convert(packed4(out, columns))
    yield from paths("int4pack", shape, x, made.packed, made.scale_zero, None, None, columns, made.group_size)


def many_rows() -> Calls:
    """torch's int4 kernel against one unpacking and a dense product."""
    out, columns = 896, 896
    made = convert(packed4(out, columns))
    more = (made.packed, made.group_size, made.scale_zero)
    for rows in (1, 2, 4, 8, 16, 32, 48, 64, 128):
        x = torch.randn(rows, columns).bfloat16()
        shape = f"{rows} x {columns} -> {out}"
        yield "int4pack", shape, "torch's kernel", lambda x=x: torch._weight_int4pack_mm_for_cpu(x, *more)
        yield "int4pack", shape, "unpacked", lambda x=x: functional.linear(x, unpacked(made))


def unpacked(made: Any) -> Tensor:
    return dequantise(made.packed, made.scale_zero, made.group_size, torch.bfloat16)


def dispatch() -> Calls:
    """Each op's way through torch's dispatcher and the choice of a backend, to a result that lies ready."""
    library = Library("mmswap_bench", "DEF")
    for op in OPS:
        arguments = sample(op, torch.device("cpu"), torch.bfloat16)
        ready, choose = OPS[op].fake(*arguments), chooser(op, OPS[op].check)
        library.define(f"{op}{OPS[op].schema}")
        library.impl(op, lambda *given, ready=ready, choose=choose: (choose(given), ready)[1], "CPU")
        entry = getattr(torch.ops.mmswap_bench, op)
        yield op, "", "dispatch", lambda entry=entry, arguments=arguments, library=library: entry(*arguments)


def llama_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos.unsqueeze(1) + torch.cat((-x[..., half:], x[..., :half]), -1) * sin.unsqueeze(1)


def timed(call: Callable[[], Any]) -> list[float]:
    """p20, p50, p80 in microseconds."""
    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    return [times[len(times) * share // 100] * 1e6 for share in (20, 50, 80)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    same = {"date": datetime.date.today().isoformat(), "device": processor(), "torch": torch.__version__}
    same |= {"python": platform.python_version(), "threads": str(torch.get_num_threads())}
    with (HERE / "ops_cpu.csv").open("w", newline="") as file, torch.inference_mode():
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for dtype in (torch.bfloat16, torch.float32):
            groups = [f(name, dtype) for name in MODELS for f in (small_ops, linears)]
            groups += [many_rows(), dispatch()] if dtype == torch.bfloat16 else []
            for op, shape, how, call in (row for group in groups for row in group):
                same["load"] = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
                p20, p50, p80 = (f"{value:.1f}" for value in timed(call))
                row = same | {"op": op, "shape": shape, "dtype": str(dtype)[6:], "how": how}
                writer.writerow(row | {"p20_us": p20, "p50_us": p50, "p80_us": p80})
                print(f"{op:20s}{shape:34s}{row['dtype']:10s}{how:20s}{p20:>9s}{p50:>9s}{p80:>9s}", flush=True)


if __name__ == "__main__":
    main()
