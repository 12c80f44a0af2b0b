"""The machine code of every kernel for gfx1100 and gfx1201, run by instructions (`machine.py`), against the truth.

What the compiler made of the source runs here: which registers a matrix product takes, what lies where in a block's
memory, how lanes exchange numbers, what a launch's arguments and blocks become. No card is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from machine import Card, programs
from native import assembly, shared_folder
from torch import Tensor

from mmswap.hip_ext import backend, rules, supply
from mmswap.hip_ext.library import Library
from mmswap.llm.ops import reference

import truths  # isort: skip
from cases import draw, packed4  # isort: skip
from tolerance import assert_close  # isort: skip

CPU = torch.device("cpu")
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
HALVES = (F16, BF16)
KINDS = (*HALVES, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


class Emulated(Library):
    """The library of an AMD card: its rules start kernels, and the interpreter runs them. `started`: their names."""

    def __init__(self, card: Card) -> None:
        self.origin, self.card, self.started = "machine code", card, set[str]()
        for name, rule in rules.LAUNCHERS.items():
            setattr(self, name, self._launcher(rule))
        self.mms_w4_scratch, self.mms_experts_scratch = rules.w4_scratch, rules.experts_scratch
        self.mms_attention_splits = lambda *_: 2

    def _launcher(self, rule: rules.Rule) -> Callable[[Any, int | None], None]:
        def start(arguments: Any, stream: int | None) -> None:
            for one in rule(arguments):
                self.started.add(one.kernel)
                self.card.start(one.kernel, one.x, one.y, one.threads, bytes(one.arguments))

        return start


@pytest.fixture(scope="module", params=["gfx1100", "gfx1201"])
def emulated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(Card(programs(assembly(request.param, shared_folder(tmp_path_factory)))))


@pytest.fixture(autouse=True)
def held(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(supply._held, CPU, emulated)
    torch.manual_seed(3)


def check(op: str, *arguments: Any) -> None:
    implementation = backend.IMPLEMENTATIONS[op]
    assert implementation.refuses(*arguments) is None
    made, truth = implementation.run(*arguments), getattr(truths, op)(*arguments)
    pairs = zip(made, truth, strict=True) if isinstance(made, tuple) else [(made, truth)]
    for one, true in pairs:
        assert_close(op, one, true)


@pytest.mark.parametrize("dtype", [*HALVES, F32], ids=str)
def test_rows(dtype: torch.dtype) -> None:
    """By eight numbers at a time, and what is left one by one."""
    weight = torch.randn(136).to(dtype)
    check("rms_norm", torch.randn(2, 136).to(dtype), weight, 1e-6, 1.0, True)
    check("fused_add_rms_norm", torch.randn(1, 129).to(dtype), torch.randn(1, 129).to(dtype), None, 1e-6, 0.0, False)
    check("silu_and_mul", torch.randn(1, 2 * 136).to(dtype))
    check("gelu_and_mul", torch.randn(1, 2 * 9).to(dtype), "tanh")
    check("gelu_and_mul", torch.randn(1, 2 * 9).to(dtype), "none")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rotary_with_sections(dtype: torch.dtype) -> None:
    q, k = torch.randn(1, 2, 2, 24).to(dtype), torch.randn(1, 1, 2, 24).to(dtype)
    angles = torch.randn(3, 1, 2, 20)
    check("rotary", q, k, angles.cos().to(dtype), angles.sin().to(dtype), [1, 8, 1])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_dense_product(rows: int, dtype: torch.dtype) -> None:
    for columns in (264, 33):
        check(
            "linear", torch.randn(rows, columns).to(dtype), torch.randn(5, columns).to(dtype), torch.randn(5).to(dtype)
        )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [128, 64, 48])
def test_a_product_with_4_bits(group: int, dtype: torch.dtype) -> None:
    """Each kernel of one row by the dtype of its scales, that of several rows, and columns in another order."""
    for rows, scales in ((1, F16), (1, BF16), (1, F32), (3, F16)):
        weight = packed4(5, 136, Random(f"{group} {rows} {scales}"), group=group, reorder=rows == 3)
        packed = (weight.words, weight.scales.to(scales), weight.zeros, weight.order)
        check("w4a16", torch.randn(rows, 136).to(dtype), *packed, torch.randn(5), 136, weight.group_size)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [128, 32])
def test_a_product_by_matrix_units(group: int, dtype: torch.dtype) -> None:
    """19 rows and 21 outputs: two blocks each way, the second in part."""
    weight = packed4(21, 640, Random(f"wmma {group}"), group=group)
    packed = (weight.words, weight.scales, weight.zeros, None)
    check("w4a16", torch.randn(19, 640).to(dtype), *packed, torch.randn(21), 640, group)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [128, 32])
def test_the_chosen_experts(group: int, dtype: torch.dtype) -> None:
    weights = [packed4(5, 256, Random(f"{group} {expert}"), group=group) for expert in range(3)]
    words, zeros = (torch.stack([getattr(weight, name) for weight in weights]) for name in ("words", "zeros"))
    scales = torch.stack([weight.scales.to(F16) for weight in weights])
    x, chosen = torch.randn(2, 256).to(dtype), torch.tensor([2, 1], dtype=torch.int64)
    check("expert_linear", x, chosen, words, scales, zeros, torch.randn(3, 5), 256, group)


def ring(kind: torch.dtype, width: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Keys and values of 21 slots for one head, and their scales."""
    shape = (1, 1, 21, width)
    if kind == torch.int8:
        keys, values = (torch.randint(-127, 128, shape, dtype=torch.int8) for _ in range(2))
        return keys, values, torch.rand(1, width) * 0.02, torch.rand(1, 1, 21) * 0.02
    scales = (torch.rand(1, width) + 0.5, torch.rand(1, 1) + 0.5) if kind.itemsize == 1 else (None, None)
    return torch.randn(shape).to(kind), torch.randn(shape).to(kind), *scales


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("group", "width"), [(1, 24), (3, 40), (1, 264)])
def test_attention_over_every_kind_of_cache(kind: torch.dtype, group: int, width: int) -> None:
    """One query head of a key head, several, and wide heads; the slots shared by two blocks."""
    keys, values, k_scale, v_scale = ring(kind, width)
    q = torch.randn(1, group, 1, width).to(HALVES[group % 2])
    length, mask = torch.tensor([19], dtype=torch.int32), torch.rand(1, 21) < 0.8
    more = (torch.randn(group).to(q.dtype), mask) if width == 40 else (None, None)
    check("decode_attention", q, keys, values, length, width**-0.5, 5.0 if group > 1 else 0.0, k_scale, v_scale, *more)


@pytest.mark.parametrize("kind", [*KINDS, F32], ids=str)
def test_a_cache_is_filled_bit_for_bit(kind: torch.dtype) -> None:
    keys, values, k_scale, v_scale = ring(kind, 40)
    k, v = torch.randn(1, 1, 3, 40).to(F16), torch.randn(1, 1, 3, 40).to(F16) * 300
    k[0, 0, 0, 0], v[0, 0, 1, 0] = 6e4, 0.0
    start = torch.tensor([19 + 2 * 21], dtype=torch.int32)  # round the end
    arguments = (k, v, keys, values, start, torch.randn(1, 40) if kind.itemsize == 1 else None, k_scale, v_scale)
    other = tuple(a.clone() if isinstance(a, Tensor) else a for a in arguments)
    backend.IMPLEMENTATIONS["kv_store"].run(*arguments)
    reference.IMPLEMENTATIONS["kv_store"].run(*other)
    for at in (2, 3, 7):
        mine, wanted = arguments[at], other[at]
        assert mine is None or torch.equal(mine.view(torch.uint8), wanted.view(torch.uint8)), at


def test_gptqs_tensors_are_laid_out_bit_for_bit() -> None:
    for seed in (1, 4, 5):
        arguments = draw("gptq_shuffle", (F16, BF16, F32)[seed % 3], Random(f"machine {seed}"), views=False)
        made, wanted = backend.IMPLEMENTATIONS["gptq_shuffle"].run(*arguments), reference.gptq_shuffle(*arguments)
        assert all(torch.equal(one, other) for one, other in zip(made, wanted, strict=True)), seed


def test_every_kernel_was_run(emulated: Emulated, request: pytest.FixtureRequest) -> None:
    """The last test: a kernel that none of those above starts is one whose machine code nobody has seen work."""
    beside = {item.originalname for item in request.session.items if item.path == request.path}
    if beside == {request.node.originalname}:
        pytest.skip("it looks at what the other tests of this file have run, and was asked for alone")
    assert emulated.started == set(emulated.card.kernels)
