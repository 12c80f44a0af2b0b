"""The kernels' own source, run on the processor, against formulas in float64: odd shapes, every dtype, every kind."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from native import COMPUTED, matrix_units, native_library, splits, start
from torch import Tensor

from mmswap.hip_ext import backend
from mmswap.hip_ext.library import Library
from mmswap.llm.ops import reference

import truths  # isort: skip
from cases import draw, packed4  # isort: skip
from tolerance import assert_close  # isort: skip

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
PRODUCTS = ("w4a16", "expert_linear", "linear")
DRAWS = 60


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Library:
    """With products of bfloat16 pairs."""
    return native_library(tmp_path_factory, monkeypatch)


@pytest.fixture
def rdna2(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Without."""
    return native_library(tmp_path_factory, monkeypatch, "-DMMS_CPU_RDNA2")


def compare(op: str, arguments: tuple[Any, ...]) -> bool:
    """Raises AssertionError: the op is wrong. False: it refuses."""
    if backend.IMPLEMENTATIONS[op].refuses(*arguments) is not None:
        return False
    result, truth = backend.IMPLEMENTATIONS[op].run(*arguments), getattr(truths, op)(*arguments)
    for one, true in zip(_all(result), truth if isinstance(truth, tuple) else (truth,), strict=True):
        assert_close(op, one, true)
    return True


def _all(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", COMPUTED)
def test_every_op_agrees_with_the_truth(library: Library, op: str, dtype: torch.dtype) -> None:
    taken = sum(compare(op, draw(op, dtype, Random(f"hip {op} {dtype} {seed}"))) for seed in range(DRAWS))
    assert taken > DRAWS // 4 or (op in PRODUCTS and dtype == torch.float32)


@pytest.mark.parametrize("op", PRODUCTS)
def test_products_agree_where_there_are_none_of_bfloat16_pairs(rdna2: Library, op: str) -> None:
    for seed in range(DRAWS):
        compare(op, draw(op, torch.bfloat16, Random(f"rdna2 {op} {seed}")))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [16, 32, 48, 64, 80, 128, 256, 384, 2176, -1])
def test_a_gemv_with_every_group_and_every_dtype_of_scales(library: Library, group: int, dtype: torch.dtype) -> None:
    """Rows of 2176 columns: three steps of a wave, the last one in part; 21 outputs, 1 to 4 rows."""
    _w4_gemv(group, dtype)


def test_the_same_without_products_of_bfloat16_pairs(rdna2: Library) -> None:
    for group in (32, 128):
        _w4_gemv(group, torch.bfloat16)


def _w4_gemv(group: int, dtype: torch.dtype) -> None:
    for rows, scales in enumerate(FLOATS, 1):
        for count in {rows, 4 if rows == 3 else rows}:
            weight = _weight(21, 2176, group, scales, f"{group} {dtype} {scales}")
            x, bias = torch.randn(count, 2176).to(dtype), torch.randn(21).to(scales)
            assert compare("w4a16", (x, *weight, None, bias, 2176, group if group > 0 else 2176))


def _weight(outputs: int, columns: int, group: int, dtype: torch.dtype, seed: str) -> tuple[Tensor, Tensor, Tensor]:
    random = Random(seed)
    torch.manual_seed(random.randrange(1 << 30))
    packed = packed4(outputs, columns, random, group=group)
    zeros = torch.randint(0, 16, packed.zeros.shape, dtype=torch.uint8)
    return packed.words, packed.scales.to(dtype), zeros


def test_codes_that_are_their_zero_point_are_nothing_however_large_x_is(library: Library) -> None:
    """1024 + code and -(1024 + zero) cancel before they meet x: massive activations leave no trace."""
    words = torch.full((4, 32), 0x77777777, dtype=torch.int32)
    zeros, scales = torch.full((4, 2), 7, dtype=torch.uint8), torch.ones(4, 2)
    x = torch.full((1, 256), 60000.0, dtype=torch.float16)
    y = backend.IMPLEMENTATIONS["w4a16"].run(x, words, scales, zeros, None, None, 256, 128)
    assert torch.equal(y, torch.zeros(1, 4, dtype=torch.float16))


@pytest.mark.parametrize("wmma", [0, 11, 12])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_gemm_of_any_rows_with_matrix_units_and_without(library: Library, dtype: torch.dtype, wmma: int) -> None:
    """gfx11's and gfx12's operands as their manuals lay them out; columns in order and not, whole blocks and not."""
    matrix_units(library, wmma)
    cases = [(37, 640, 128), (16, 768, 16), (5, 300, 48), (33, 136, 32), (20, 1280, -1)]
    for seed, (outputs, columns, group) in enumerate(cases):
        for rows in (5, 16, 19, 33)[seed % 2 :: 2]:
            random = Random(f"{wmma} {dtype} {seed} {rows}")
            weight = packed4(outputs, columns, random, group=group, reorder=seed == 3)
            x, bias = torch.randn(rows, columns).to(dtype), torch.randn(outputs).to(dtype)
            packed = (weight.words, weight.scales, weight.zeros, weight.order)
            assert compare("w4a16", (x, *packed, bias if seed % 2 else None, columns, weight.group_size))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("group", [16, 48, 64, 128, -1])
def test_each_row_goes_to_its_own_expert(library: Library, group: int, dtype: torch.dtype) -> None:
    """Rows of 2176 columns, three steps of a wave, and fewer; 21 outputs; one row of x for all, and not."""
    for seed, (columns, chosen) in enumerate(((2176, [2, 0, 2, 1]), (2176, [1]), (136, [0, 2, 1]))):
        weights = [_weight(21, columns, group, FLOATS[seed], f"{seed} {e} {group} {dtype}") for e in range(3)]
        stacked = [torch.stack(parts) for parts in zip(*weights, strict=True)]
        experts = torch.tensor(chosen, dtype=torch.int64 if seed % 2 else torch.int32)
        size = group if group > 0 else -(-columns // 128) * 128
        for rows in {1, len(chosen)}:
            x, bias = torch.randn(rows, columns).to(dtype), torch.randn(3, 21)
            assert compare("expert_linear", (x, experts, *stacked, bias if rows == 1 else None, columns, size))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_dense_product_of_several_steps(library: Library, dtype: torch.dtype) -> None:
    """2100 columns: waves share them; 2101: nothing can be read by eight; a weight with a stride."""
    for rows, columns, stride in ((1, 2100, 2104), (2, 2101, 2101), (3, 2048, 2048), (4, 264, 272)):
        weight = torch.randn(19, stride).to(dtype)[:, :columns]
        assert compare("linear", (torch.randn(rows, columns).to(dtype), weight, torch.randn(19).to(dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_of_real_width(library: Library, dtype: torch.dtype) -> None:
    """Several turns of a block, with what is left of eight (float32), at an address for eight numbers and not."""
    for width in (3584, 4100, 4101):
        x, more, weight = torch.randn(2, width).to(dtype), torch.randn(2, width).to(dtype), torch.randn(width)
        for late in (True, False):
            assert compare("rms_norm", (x, weight, 1e-6, 1.0, late))
            assert compare("fused_add_rms_norm", (x, more, weight.to(dtype), 1e-6, 0.0, late))
        gate_up = torch.randn(3, 2 * width).to(dtype) * 4
        assert compare("silu_and_mul", (gate_up,))
        assert compare("gelu_and_mul", (gate_up, "none"))
        assert compare("gelu_and_mul", (gate_up, "tanh"))


@pytest.mark.parametrize("late", [True, False])
def test_a_norm_is_rounded_where_its_model_rounds(library: Library, late: bool) -> None:
    """Before the weight or after: nearly all bits are the reference's."""
    arguments = (torch.randn(2, 1024).bfloat16(), torch.randn(1024), 1e-6, 1.0, late)
    one, other = (b.IMPLEMENTATIONS["rms_norm"].run(*arguments) for b in (backend, reference))
    assert (one == other).float().mean() > 0.99


def test_an_activation_of_every_half(library: Library) -> None:
    """No gate overflows on its way: all 65536 numbers of float16 but infinities and NaN."""
    gate = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16)
    gate = gate[gate.isfinite()]
    gate_up = torch.cat((gate, torch.ones_like(gate))).unsqueeze(0)
    for op, arguments in (("silu_and_mul", ()), ("gelu_and_mul", ("none",)), ("gelu_and_mul", ("tanh",))):
        assert compare(op, (gate_up, *arguments))


@pytest.mark.parametrize("sections", [[16, 24, 24], [32, 32], [8] * 8], ids=str)
def test_rotary_takes_each_run_from_its_axis(library: Library, sections: list[int]) -> None:
    q, k = torch.randn(2, 3, 2, 160).half(), torch.randn(2, 1, 2, 160).half()
    angles = torch.randn(len(sections) if len(sections) < 8 else 3, 2, 2, 128)
    assert compare("rotary", (q, k, angles.cos(), angles.sin(), sections))


@pytest.mark.parametrize("kind", [*HALVES, *EIGHT], ids=str)
def test_attention_over_many_slots_and_splits(library: Library, kind: torch.dtype) -> None:
    """Heads of 8, 96, 256 and 512 channels, one query head a key head and seven; half of the slots filled, and all."""
    for seed, (width, wide, group) in enumerate(((8, 8, 1), (96, 64, 7), (256, 256, 2), (512, 264, 1))):
        torch.manual_seed(seed)
        for slots, filled in ((700, 333), (260, 260)):
            keys, values = (
                torch.randn(1, 2, slots, w).mul(20 if kind == torch.int8 else 1).to(kind) for w in (width, wide)
            )
            k_scale = torch.rand(2, width) + 0.5 if kind in EIGHT else None
            v_scale = torch.rand(2, 1) + 0.5 if kind in EIGHT else None
            if kind == torch.int8:
                v_scale = torch.rand(1, 2, slots)
            q = torch.randn(1, 2 * group, 1, width).half()
            sinks = torch.randn(2 * group) if seed % 2 else None
            length = torch.tensor([filled], dtype=torch.int32)
            arguments = (q, keys, values, length, 0.05, 5.0 * (seed == 1), k_scale, v_scale, sinks, None)
            assert compare("decode_attention", arguments)
            for count in (1, 3, 64):
                with splits(library, count):
                    assert compare("decode_attention", arguments)


@pytest.mark.parametrize("kind", EIGHT[:2], ids=str)
def test_attention_reads_every_code_of_8_bits(library: Library, kind: torch.dtype) -> None:
    """One slot: its value comes out as it is."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes.view(kind).float().isfinite()]
    codes = torch.cat((codes, codes.new_zeros(256 - len(codes)))).view(kind)
    keys = torch.zeros(1, 1, 1, 8).to(kind)
    q, length = torch.ones(1, 1, 1, 8), torch.ones(1, dtype=torch.int32)
    run = backend.IMPLEMENTATIONS["decode_attention"].run
    y = run(q, keys, codes.view(1, 1, 1, 256), length, 1.0, 0.0, None, None, None, None)
    assert torch.equal(y.flatten(), codes.float())


def test_a_cache_is_filled_bit_for_bit(library: Library) -> None:
    """As the reference fills it, which a test of its own holds to every code."""
    store = backend.IMPLEMENTATIONS["kv_store"]
    taken = 0
    for seed in range(120):
        dtype = FLOATS[seed % 3]
        own = list(draw("kv_store", dtype, Random(f"hip store {seed}")))
        other = [a.clone() if isinstance(a, Tensor) else a for a in own]
        if store.refuses(*own) is None:
            taken += 1
            store.run(*own)
            reference.IMPLEMENTATIONS["kv_store"].run(*other)
            for i in (2, 3, 7):
                assert own[i] is None or _bits(own[i], other[i]), (seed, i)
    assert taken > 60


@pytest.mark.parametrize("kind", EIGHT, ids=str)
def test_every_half_becomes_the_code_that_the_reference_gives_it(library: Library, kind: torch.dtype) -> None:
    """All 65536, infinities and NaN too; the ring turns below 0 as above."""
    k = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).view(1, 1, 128, 512)
    scales = (torch.full((1, 512), 0.37), torch.zeros(1, 1, 128)) if kind == torch.int8 else (None, None)
    cache = [torch.zeros(1, 1, 128, 512).to(kind) for _ in range(4)]
    start = torch.tensor([-58], dtype=torch.int32)
    own, other = (scales[0], None if scales[1] is None else scales[1].clone()), scales
    backend.IMPLEMENTATIONS["kv_store"].run(k, k, cache[0], cache[1], start, None, *own)
    reference.IMPLEMENTATIONS["kv_store"].run(k, k, cache[2], cache[3], start, None, *other)
    assert _bits(cache[0], cache[2])
    assert _bits(cache[1], cache[3])
    assert own[1] is None or _bits(own[1], other[1])


def _bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("ordered", [False, True])
def test_columns_in_another_order_and_padded(library: Library, ordered: bool) -> None:
    x = torch.randn(3, 300).half()
    order = torch.randperm(300).to(torch.int32) if ordered else None
    out = torch.full((3, 384), torch.nan, dtype=torch.float16)
    numbers = {"x_stride": 300, "rows": 3, "columns": 300, "slots": 300, "padded": 384}
    start(library, "mms_take_columns", "mms_take", x=x, order=order, out=out, **numbers)
    assert torch.equal(out[:, :300], x if order is None else x[:, order.long()])
    assert not out[:, 300:].any()
