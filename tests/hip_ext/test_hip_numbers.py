"""The kernels' own source, run on the processor, against formulas in float64: odd shapes, every dtype, every kind."""

from __future__ import annotations

import ctypes
from random import Random
from typing import Any

import pytest
import torch
from native import on_processor
from torch import Tensor

from mmswap.hip_ext import backend, supply
from mmswap.hip_ext.interface import STRUCTS
from mmswap.hip_ext.library import Library, load
from mmswap.llm.ops import reference
from mmswap.llm.quant import gptq
from mmswap.llm.quant.bits import from_blocks
from mmswap.llm.quant.columns import arrange
from mmswap.llm.quant.layout import Packed4, pack

import truths  # isort: skip
from cases import draw, packed4  # isort: skip
from tolerance import Truth, assert_close  # isort: skip

HALVES = (torch.float16, torch.bfloat16)
CPU = torch.device("cpu")
FLAGS = {"dot2": (), "rdna2": ("-DMMS_CPU_RDNA2",)}
COMPUTED = [op for op in backend.IMPLEMENTATIONS if op != "kv_store"]
DRAWS = 40


@pytest.fixture(scope="module", params=FLAGS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Bound, and what the backend finds for the processor."""
    found = load(on_processor(tmp_path_factory.mktemp("native"), *FLAGS[request.param]), "cpu")
    assert isinstance(found, Library), str(found)
    supply._held[CPU] = found
    request.addfinalizer(lambda: supply._held.pop(CPU))
    return found


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op", COMPUTED)
def test_every_op_agrees_with_the_truth(library: Library, op: str, dtype: torch.dtype) -> None:
    taken = 0
    for seed in range(DRAWS):
        arguments = draw(op, dtype, Random(f"hip {op} {dtype} {seed}"))
        if backend.IMPLEMENTATIONS[op].refuses(*arguments) is None:
            taken += 1
            result = backend.IMPLEMENTATIONS[op].run(*arguments)
            truth = getattr(truths, op)(*arguments)
            for one, true in zip(_all(result), truth if isinstance(truth, tuple) else (truth,), strict=True):
                assert_close(op, one, true)
    assert taken > DRAWS // 3


def _all(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
