"""The same list on a real card, AMD's or NVIDIA's, by the library that is built for it. Skipped where none can be."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from native import (
    COMPUTED,
    CSRC,  # noqa: F401 - puts cases, truths and tolerance on the path
)
from torch import Tensor

from mmswap.hip_ext import backend
from mmswap.llm.ops import reference, trial

import truths  # isort: skip
from cases import DTYPES, draw  # isort: skip
from tolerance import assert_close  # isort: skip

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card")
CARD = torch.device("cuda", 0)
OPS = tuple(backend.IMPLEMENTATIONS)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Compiled and loaded, or why not."""
    backend.prepare(CARD)
    why = backend.available(CARD)
    if why is not None:
        pytest.skip(why)


def on_card(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments there, strides included."""
    return tuple(_moved(a) if isinstance(a, Tensor) else a for a in arguments)


def _moved(tensor: Tensor) -> Tensor:
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CARD)
    return there.copy_(tensor)


def host(result: Any) -> tuple[Tensor, ...]:
    return tuple(one.cpu() for one in (result if isinstance(result, tuple) else (result,)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", COMPUTED)
def test_every_op_is_right_on_the_card(op: str, dtype: torch.dtype) -> None:
    for seed in range(40):
        arguments = draw(op, dtype, Random(f"hip {op} {dtype} {seed}"))
        there = on_card(arguments)
        if backend.IMPLEMENTATIONS[op].refuses(*there) is None:
            truth = getattr(truths, op)(*arguments)
            found = host(backend.IMPLEMENTATIONS[op].run(*there))
            for one, true in zip(found, truth if isinstance(truth, tuple) else (truth,), strict=True):
                assert_close(op, one, true)


def test_what_is_stored_on_the_card_is_what_the_reference_stores() -> None:
    for seed in range(60):
        arguments = draw("kv_store", DTYPES[seed % 3], Random(f"hip store {seed}"))
        there = on_card(arguments)
        if backend.IMPLEMENTATIONS["kv_store"].refuses(*there) is None:
            backend.IMPLEMENTATIONS["kv_store"].run(*there)
            reference.IMPLEMENTATIONS["kv_store"].run(*arguments)
            for at in (2, 3, 7):
                own, other = there[at], arguments[at]
                assert own is None or torch.equal(_bits(own.cpu()), _bits(other)), (seed, at)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("op", OPS)
def test_a_call_is_captured_in_a_graph_and_follows_its_stream(op: str) -> None:
    """What is replayed reads the arguments as they are then."""
    arguments = trial.sample(op, CARD, torch.float16)
    run = backend.IMPLEMENTATIONS[op].run
    run(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(*arguments)
    arguments[0].neg_()
    graph.replay()
    wanted = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    direct = run(*wanted)
    torch.cuda.synchronize()
    pairs = zip(wanted[2:4], arguments[2:4]) if op == "kv_store" else zip(host(result), host(direct))
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in pairs)
