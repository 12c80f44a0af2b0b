"""Starting and tuning on a pretended card: run as a program, without the interpreter.

python started.py FOLDER      # one JSON line a check: its name, and what was wrong or null
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

import torch
from pretended import pretend
from torch import Tensor
from triton.runtime.jit import JITFunction

from mmswap.llm.ops import triton
from mmswap.llm.ops.triton import arch, configs, w4_linear
from mmswap.llm.ops.triton.configs import Config
from mmswap.llm.ops.triton.tuning import FILE, restore, tune

CARD = pretend("gfx1100")
SHAPE = (40, 256, 128)
DEFAULT = configs.TABLE["rdna3"]["w4_gemv"][0]


def call(rows: int = 1, out: int = 40, at: int = 0) -> tuple[Any, ...]:
    """w4a16 of 256 columns. `at`: numbers before x in its storage."""
    x = torch.zeros(at + rows * 256, dtype=torch.float16)[at:].view(rows, 256)
    words, scales = torch.zeros(out, 32, dtype=torch.int32), torch.zeros(out, 2, dtype=torch.float16)
    return x, words, scales, torch.zeros(out, 2, dtype=torch.uint8), None, None, 256, 128


def a_start_goes_past_the_jit() -> None:
    """The second start of its like reaches the driver with the same arguments, and Triton's binding is not asked."""
    arguments = call()
    w4_linear.run(*arguments)
    with patch.object(JITFunction, "run", side_effect=AssertionError("the JIT was asked")):
        w4_linear.run(*arguments)
    first, second = CARD.started[-2:]
    assert first[:2] == second[:2] == ("w4_gemv", (5, 1, 1))
    for one, other in zip(first[2], second[2], strict=True):
        assert type(one) is type(other)
        assert isinstance(one, Tensor) or one == other


def another_class_of_arguments_is_compiled_anew() -> None:
    """What was compiled for one dtype, alignment or divisibility is not started for another."""
    before = len(CARD.loaded)
    w4_linear.run(*call(rows=3))
    w4_linear.run(*call(rows=3, out=48))  # 48 is divisible by 16, 40 was not
    assert len(CARD.loaded) == before + 2
    w4_linear.run(*call(rows=4, out=48))
    assert len(CARD.loaded) == before + 2
    assert CARD.started[-1][1] == (1, 6, 1)


def an_odd_address_is_copied() -> None:
    """A kernel that reads 16 bytes at a time never gets an address that is no multiple of them."""
    w4_linear.run(*call(at=1))
    assert all(a.data_ptr() % 16 == 0 for a in CARD.started[-1][2] if isinstance(a, Tensor))


def tuning_takes_the_fastest_and_keeps_it() -> None:
    said: list[str] = []
    times = iter((3.0, 1.0, 2.0, 4.0))
    calls = [("w4a16", call()), ("w4a16", call()), ("silu_and_mul", (torch.zeros(1, 8),))]
    assert tune(calls, said.append, clock=lambda run: (run(), next(times))[1]) == 1
    best = configs.TABLE["rdna3"]["w4_gemv"][1]
    assert configs.tuned == {("w4_gemv", SHAPE): best}
    assert said[0] == "Tuning kernels for this card, 1 of 1: w4_gemv 40 x 256 x 128"
    w4_linear.run(*call())
    assert CARD.started[-1][1] == (-(-40 // best.rows), 1, 1)
    configs.tuned.clear()
    assert tune(calls, said.append, clock=_never) == 0
    assert configs.tuned == {("w4_gemv", SHAPE): best}
    assert len(said) == 2


def without_measuring_the_first_of_the_table_is_taken() -> None:
    configs.tuned.clear()
    assert tune([("w4a16", call(out=72))], _never, measure=False, clock=_never) == 0
    w4_linear.run(*call(out=72))
    assert CARD.started[-1][1] == (72 // DEFAULT.rows, 1, 1)


def a_configuration_that_does_not_run_is_none() -> None:
    def clock(run: Callable[[], Any]) -> float:
        if configs.tuned["w4_gemv", (80, 256, 128)] != Config(4, 256, 4):
            raise RuntimeError("out of resource: shared memory")
        return 1.0

    assert tune([("w4a16", call(out=80))], lambda line: None, clock=clock) == 1
    assert configs.tuned["w4_gemv", (80, 256, 128)] == Config(4, 256, 4)


def kept_nonsense_is_ignored() -> None:
    """Of another card, another table, or no configuration at all: the table's first stands."""
    path = Path(os.environ["MMSWAP_CACHE"]) / FILE
    title = f"gfx1100, triton {arch.version()}"
    good = {"w4_gemv 7 8 9": [4, 128, 2, 1]}
    held = {"w4_gemv 1 2 3": [512, 8, 32, 1], "w4_gemv 4 5 6": "x", "other 1": [8, 128, 4, 1], **good}
    path.write_text(json.dumps({title: held, "gfx1201, triton 1.0": {"w4_gemv 5 5 5": [4, 128, 2, 1]}}))
    configs.tuned.clear()
    assert restore(arch.card(torch.device("cpu"))) == good
    assert configs.tuned == {("w4_gemv", (7, 8, 9)): Config(4, 128, 2)}
    path.write_text("[]")
    assert restore(arch.card(torch.device("cpu"))) == {}


def every_op_reaches_the_card() -> None:
    """All ops, started twice on the pretended card: the second time from what was kept."""
    half = torch.float16
    q, cache = torch.zeros(1, 4, 1, 64, dtype=half), torch.zeros(1, 2, 16, 64, dtype=half)
    one = torch.zeros(1, dtype=torch.int32)
    words, scales, zeros = call()[1:4]
    stacked = tuple(tensor.unsqueeze(0) for tensor in (words, scales, zeros))
    calls: dict[str, tuple[Any, ...]] = {
        "w4a16": call(),
        "expert_linear": (call()[0], torch.zeros(1, dtype=torch.int64), *stacked, None, 256, 128),
        "linear": (torch.zeros(1, 64, dtype=half), torch.zeros(32, 64, dtype=half), None),
        "rms_norm": (q, None, 1e-6, 0.0, True),
        "fused_add_rms_norm": (q, q, q[0, 0, 0], 1e-6, 0.0, True),
        "silu_and_mul": (q,),
        "gelu_and_mul": (q, "tanh"),
        "rotary": (q, q, q[0, :1], q[0, :1], []),
        "kv_store": (cache[:, :, :1], cache[:, :, :1], cache, cache, one, None, None, None),
        "decode_attention": (q, cache, cache, one, 0.1, 0.0, None, None, None, None),
    }
    assert set(calls) == set(triton.IMPLEMENTATIONS)
    for op, arguments in calls.items():
        triton.IMPLEMENTATIONS[op].run(*arguments)
        started = len(CARD.started)
        with patch.object(JITFunction, "run", side_effect=AssertionError("the JIT was asked")):
            triton.IMPLEMENTATIONS[op].run(*arguments)
        assert len(CARD.started) == started + (2 if op == "decode_attention" else 1), op


def _never(*arguments: Any) -> Any:
    raise AssertionError("nothing is said or measured here")


def host_microseconds() -> tuple[float, float]:
    """(a start by `Launcher`, by Triton's own call): what the host spends, with a driver that does nothing."""
    arguments = call()
    w4_linear.run(*arguments)
    kernel, grid = w4_linear._gemv.kernel, (5, 1, 1)
    rest, constants = CARD.started[-1][2][:10], CARD.started[-1][2][10:]
    values = tuple(constants)
    quick = _best(lambda: w4_linear._gemv(grid, rest, values, 4))
    plain = _best(lambda: kernel[grid](*rest, *values, num_warps=4, num_stages=1, enable_fp_fusion=True))
    return quick, plain


def _best(run: Callable[[], Any]) -> float:
    run()
    times = []
    for _ in range(20):
        begin = perf_counter()
        for _ in range(50):
            run()
        times.append((perf_counter() - begin) / 50)
    return min(times) * 1e6


CHECKS = (
    a_start_goes_past_the_jit, another_class_of_arguments_is_compiled_anew, an_odd_address_is_copied,
    tuning_takes_the_fastest_and_keeps_it, without_measuring_the_first_of_the_table_is_taken,
    a_configuration_that_does_not_run_is_none, kept_nonsense_is_ignored, every_op_reaches_the_card,
)  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:] == ["--host"]:
        print("microseconds of the host, Launcher and Triton's own start: {:.1f}, {:.1f}".format(*host_microseconds()))
    else:
        for check in CHECKS:
            wrong = None
            try:
                check()
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            print(json.dumps({"check": check.__name__, "wrong": wrong}), flush=True)
