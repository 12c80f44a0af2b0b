"""Triton's kernels, interpreted, against the truth in float64: run as a program with TRITON_INTERPRET=1.

    python interpreted.py      # one JSON line a check: its name, how many calls were taken, and what was wrong or null

A process of its own: the interpreter is chosen when the kernels are imported. Cases, truths and tolerances are those of
all backends.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
import truths
from cases import draw, packed4
from emulated import mend
from tolerance import assert_close
from torch import Tensor

from mmswap.llm.ops import OPS, kv_reference, triton
from mmswap.llm.ops.triton import arch
from mmswap.llm.ops.triton.arch import Card
from mmswap.llm.ops.triton.w4 import together

DRAWS = {"w4a16": 10, "linear": 10, "kv_store": 12, "decode_attention": 12}
FEWEST = 6
CARDS = {"dot2": Card("hip", "gfx1100", 32), "ptx": Card("cuda", "90", 32)}
HALVES = (torch.float16, torch.bfloat16)


def main() -> None:
    """Every check, told as it ends."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy on infinities that are meant
    mend()
    for name, check in checks().items():
        taken, wrong = 0, None
        try:
            taken = check()
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        print(json.dumps({"check": name, "taken": taken, "wrong": wrong}), flush=True)


def checks() -> dict[str, Callable[[], int]]:
    """Name -> what runs; each returns how many calls Triton took."""
    found: dict[str, Callable[[], int]] = {}
    for op in triton.IMPLEMENTATIONS:
        dtypes = HALVES if op in ("w4a16", "expert_linear", "linear") else (*HALVES, torch.float32)
        for dtype in dtypes:
            kind = str(dtype).removeprefix("torch.")
            check = _stores if op == "kv_store" else _agrees
            found[f"{op}-{kind}"] = lambda op=op, dtype=dtype, check=check: check(op, dtype)
    for name, card in CARDS.items():
        for dtype in HALVES:
            kind = str(dtype).removeprefix("torch.")
            found[f"assembly-{name}-{kind}"] = lambda card=card, dtype=dtype: _assembly(card, dtype)
    return {
        **found,
        "groups": _groups,
        "scales-of-a-block": _scales_of_a_block,
        "matrix-units": _matrix_units,
        "fp8-codes": _fp8_codes,
        "entry": _entry,
        "many-rows": _pieces,
    }


def _agrees(op: str, dtype: torch.dtype) -> int:
    implementation, taken = triton.IMPLEMENTATIONS[op], 0
    for seed in range(DRAWS.get(op, FEWEST)):
        arguments = draw(op, dtype, Random(f"triton {op} {dtype} {seed}"), views=seed % 3 == 0)
        if implementation.refuses(*arguments) is None:
            taken += 1
            _compare(op, implementation.run(*arguments), getattr(truths, op)(*arguments))
    return taken


def _compare(op: str, result: Any, truth: Any) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for one, true in zip(results, truth if isinstance(truth, tuple) else (truth,), strict=True):
        assert one.is_contiguous()
        assert_close(op, one, true)


def _stores(op: str, dtype: torch.dtype) -> int:
    """Every slot as the reference leaves it, bit for bit."""
    taken = 0
    for seed in range(DRAWS[op]):
        arguments = draw(op, dtype, Random(f"triton {op} {dtype} {seed}"), views=seed % 3 == 0)
        if triton.IMPLEMENTATIONS[op].refuses(*arguments) is None:
            taken += 1
            other = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
            triton.IMPLEMENTATIONS[op].run(*arguments)
            kv_reference.kv_store(*other)
            for mine, theirs in zip(arguments, other, strict=True):
                assert not isinstance(mine, Tensor) or _same(mine, theirs), f"{mine.dtype} of seed {seed} differs"
    return taken


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype.itemsize == 1:
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return torch.equal(one, other)


def _assembly(card: Card, dtype: torch.dtype) -> int:
    """The cards' arithmetic with its instructions emulated: the products that no interpreter can run otherwise."""
    math = arch.pairs_math(card, dtype)
    assert math.startswith(("dot2", "ptx"))
    random = Random(str(math))
    with patch.object(arch, "pairs_math", lambda found, kind, real=arch.pairs_math: real(card, kind)):
        for number, group in enumerate((16, 32, 48, 64, 128, -1)):
            rows = 1 + 2 * (number % 2)
            x = torch.randn(rows, 304) * (100.0 if rows == 3 else 1.0)
            x[:, 5] = 2000.0  # a massive activation
            _linear4(x.to(dtype), packed4(33, 304, random, group=group))
        arguments = draw("expert_linear", dtype, random, views=False)
        result = triton.IMPLEMENTATIONS["expert_linear"].run(*arguments)
        _compare("expert_linear", result, truths.expert_linear(*arguments))
        x, weight = torch.randn(2, 134).to(dtype), torch.randn(33, 134).to(dtype)
        _compare("linear", triton.IMPLEMENTATIONS["linear"].run(x, weight, None), truths.linear(x, weight, None))
    return 8


def _linear4(x: Tensor, weight: Any) -> None:
    arguments = (
        x, weight.words, weight.scales, weight.zeros, weight.order, torch.randn(weight.out_features),
        weight.in_features, weight.group_size,
    )  # fmt: skip
    assert triton.IMPLEMENTATIONS["w4a16"].refuses(*arguments) is None
    _compare("w4a16", triton.IMPLEMENTATIONS["w4a16"].run(*arguments), truths.w4a16(*arguments))


def _groups() -> int:
    """Groups of any 16 columns, columns that are no multiple of the block, act-order, and those it leaves to others."""
    random, taken = Random("groups"), 0
    for number, group in enumerate((16, 48, 80, 96, 112, 192, 256, 320, 48, 192)):
        columns, rows = (100, 336, 1001)[number % 3], (1, 2, 17, 1)[number % 4]
        _linear4(torch.randn(rows, columns).half(), packed4(9, columns, random, group=group, reorder=rows == 2))
        taken += 1
    for group in (8, 24, 40):
        weight = packed4(9, 336, random, group=group)
        why = triton.IMPLEMENTATIONS["w4a16"].refuses(
            torch.randn(1, 336).half(), weight.words, weight.scales, weight.zeros, None, None, 336, group
        )
        assert why == f"groups of {group} columns are no multiple of 16"
    return taken


def _matrix_units() -> int:
    """More than a few rows go by tl.dot, where a matrix of sixteen columns has one scale a row."""
    from mmswap.llm.ops.triton import w4_linear

    taken = 0
    for group in (32, 64, 96, 128, 192, -1, 48):
        for dtype in HALVES:
            x = torch.randn((5, 16)[taken % 2], (100, 336)[taken // 2 % 2])
            x[0, 3] = 2000.0
            weight = packed4(37, x.shape[1], Random(f"dot {group}"), group=group)
            with patch.object(w4_linear, "_dot", wraps=w4_linear._dot) as started:
                _linear4(x.to(dtype), weight)
            assert started.called == (group != 48 or weight.group_size > 100)
            taken += 1
    return taken


def _scales_of_a_block() -> int:
    """Groups of 32 and 64: the scales of a block are loaded in one number, if they are 16 bits and lie so."""
    taken = 0
    for group in (32, 64):
        for dtype in (*HALVES, torch.float32):
            for moved in (False, True)[: 1 + (dtype == torch.float16)]:
                weight = packed4(9, 464, Random("block"), group=group)
                scales, zeros = weight.scales.to(dtype), weight.zeros
                if moved:
                    zeros = torch.cat((zeros.new_zeros(1), zeros.flatten()))[1:].view_as(zeros)
                assert together(scales, zeros, group) == (dtype in HALVES and not moved)
                _linear4(torch.randn(1, 464).half(), replace(weight, scales=scales, zeros=zeros))
                taken += 1
    return taken


def _pieces() -> int:
    """A large weight is unpacked by pieces of rows."""
    from mmswap.llm.ops.triton import w4_linear

    with patch.object(w4_linear, "_PIECE", 4096):
        _linear4(torch.randn(40, 336).half(), packed4(21, 336, Random("pieces"), group=64))
    return 1


def _fp8_codes() -> int:
    """All 256 codes of both formats but NaN, and every float16 on its way in."""
    from fp8_kernels import codes_of, numbers_of

    for dtype, e5m2 in ((torch.float8_e4m3fn, False), (torch.float8_e5m2, True)):
        codes = torch.arange(256, dtype=torch.uint8)
        value = codes.view(dtype).float()
        assert torch.equal(numbers_of(codes, e5m2)[~value.isnan()], value[~value.isnan()])
        x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
        x = torch.cat((x[~x.isnan()], x[~x.isnan()] * 1e-3))
        wanted = x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype).view(torch.uint8)
        assert torch.equal(codes_of(x, e5m2), wanted)
    return 2


def _entry() -> int:
    """Through torch's dispatcher, Triton forced: what is refused is computed by the reference."""
    from mmswap.llm.ops import use

    use("triton", "cpu")
    for op in triton.IMPLEMENTATIONS:
        arguments = draw(op, torch.float16, Random(f"entry {op}"), views=False)
        torch.library.opcheck(
            getattr(torch.ops.mmswap, op).default, arguments, test_utils=("test_schema", "test_faketensor")
        )
    assert set(OPS) - set(triton.IMPLEMENTATIONS) == {"int4pack"}
    return len(triton.IMPLEMENTATIONS)


if __name__ == "__main__":
    main()
