"""Every backend that takes a call is right for it: odd shapes, every dtype, strided views, nothing at all."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import truths
from cases import DTYPES, HERE, draw
from tolerance import Truth, assert_close
from torch import Tensor

from mmswap.llm.ops import OPS, cpu, reference, using

BACKENDS = {"cpu": cpu, "reference": reference}
COMPUTED = [op for op in HERE if op != "kv_store"]
DRAWS = 40


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", COMPUTED)
def test_every_backend_agrees_with_the_truth(op: str, dtype: torch.dtype) -> None:
    taken = dict.fromkeys(BACKENDS, 0)
    for seed in range(DRAWS):
        arguments = draw(op, dtype, Random(f"{op} {dtype} {seed}"))
        truth = getattr(truths, op)(*arguments)
        for name, backend in BACKENDS.items():
            implementation = backend.IMPLEMENTATIONS.get(op)
            if implementation is None or implementation.refuses(*arguments) is not None:
                continue
            taken[name] += 1
            before = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
            _compare(op, implementation.run(*arguments), truth, dtype)
            assert all(_same(a, b) for a, b in zip(arguments, before, strict=True)), "an argument was written to"
    assert taken["reference"] == DRAWS


@pytest.mark.parametrize("op", HERE)
def test_the_backend_of_the_processor_is_no_ornament(op: str) -> None:
    """It takes what decode asks of it: a path that refuses everything would pass the test above."""
    dtype = torch.bfloat16
    drawn = [draw(op, dtype, Random(f"{op} {seed}"), views=False) for seed in range(DRAWS)]
    refused = [cpu.IMPLEMENTATIONS[op].refuses(*arguments) for arguments in drawn]
    assert refused.count(None) > DRAWS // 3


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("op", COMPUTED)
def test_the_entry_gives_what_the_schema_says(op: str, name: str) -> None:
    """Shape, dtype and order in memory as the fake has them, and numbers."""
    with using(name):
        for seed in range(6):
            arguments = draw(op, torch.bfloat16, Random(f"entry {op} {seed}"))
            result = getattr(torch.ops.mmswap, op)(*arguments)
            fake = OPS[op].fake(*arguments)
            for one, other in zip(_all(result), _all(fake), strict=True):
                assert (one.shape, one.dtype, one.is_contiguous()) == (other.shape, other.dtype, True)
            _compare(op, result, getattr(truths, op)(*arguments), torch.bfloat16)


def _compare(op: str, result: Any, truth: Truth | tuple[Truth, ...], dtype: torch.dtype) -> None:
    for one, true in zip(_all(result), truth if isinstance(truth, tuple) else (truth,), strict=True):
        assert one.dtype == dtype
        assert_close(op, one, true)


def _all(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    if one.dtype.itemsize == 1:
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return torch.equal(one.nan_to_num(), other.nan_to_num())
