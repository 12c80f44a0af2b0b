"""Kernels are started in the same way by the launchers in C and by the rules in Python, whatever the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from stand_in import Both

from mmswap.hip_ext import rules
from mmswap.hip_ext.interface import STRUCTS

DRAWS = 300
HALVES, FLOATS = (0, 1), (0, 1, 2)


@pytest.fixture(autouse=True)
def dry(both: Both) -> Iterator[None]:
    """Nothing runs, so that addresses may be invented."""
    both.opened.stand_in_dry(1)
    both.told()
    yield
    both.opened.stand_in_dry(0)


def _place(random: Random, *, to: int = 2) -> int:
    """An address that nobody looks at."""
    return random.randrange(1 << 20, 1 << 30) * 64 + random.choice((0, 0, 0, 8, 16, 32)) // to * to


def _size(random: Random) -> int:
    return random.choice((1, 2, 3, 4, 5, 7, 64, 100, 128, 576, 1024, 4095, 4096, 12345))


def _act(random: Random) -> dict[str, Any]:
    return {
        "gate_up": _place(random, to=4), "out": _place(random, to=4), "rows": _size(random),
        "features": _size(random), "dtype": random.choice(FLOATS), "act": random.choice((1, 2)),
    }  # fmt: skip


def _norm(random: Random) -> dict[str, Any]:
    places = {name: _place(random, to=4) for name in ("x", "residual", "out", "total")}
    return {**places, "rows": _size(random), "features": _size(random), "dtype": random.choice(FLOATS)}


def _rotary(random: Random) -> dict[str, Any]:
    places = {name: _place(random, to=4) for name in ("q", "k", "cos", "sin", "q_out", "k_out")}
    counts = {name: random.choice((1, 2, 9)) for name in ("batch", "q_heads", "k_heads", "tokens")}
    return {**places, **counts, "channels": 64, "turned": 32, "dtype": random.choice(FLOATS)}


def _w4(random: Random) -> dict[str, Any]:
    columns = random.choice((8, 100, 128, 576, 1024, 1032, 4096, 12288))
    order = random.choice((None, None, _place(random, to=4)))
    slots = columns if order is None else columns + random.choice((0, 128))
    padded = -(-slots // 128) * 128
    group = random.choice((16, 32, 48, 64, 128, 192, 256, padded, padded * 2))
    return {
        "x": _place(random), "words": _place(random, to=16), "scales": _place(random, to=4),
        "zeros": _place(random), "order": order, "out": _place(random), "scratch": _place(random, to=16),
        "x_stride": columns + random.choice((0, 1, 8)), "rows": random.choice((1, 2, 3, 4)),
        "outputs": _size(random), "columns": columns, "slots": slots, "padded": padded, "group_size": group,
        "groups": -(-padded // group), "dtype": random.choice(HALVES), "scale_dtype": random.choice(FLOATS),
    }  # fmt: skip


def _linear(random: Random) -> dict[str, Any]:
    columns = _size(random)
    return {
        "x": _place(random), "weight": _place(random), "out": _place(random),
        "x_stride": columns + random.choice((0, 1, 8)), "weight_stride": columns + random.choice((0, 1, 8)),
        "rows": random.choice((1, 2, 3, 4)), "outputs": _size(random), "columns": columns,
        "dtype": random.choice(HALVES),
    }  # fmt: skip


def _ring(random: Random) -> dict[str, Any]:
    return {
        "keys": _place(random, to=32), "values": _place(random, to=32), "v_scale": None,
        "batch": random.choice((1, 3)), "heads": random.choice((1, 2, 8)), "slots": random.choice((0, 1, 64, 1000)),
        "k_channels": random.choice((8, 40, 64, 128, 256, 264, 512)), "v_channels": random.choice((64, 128, 512)),
        **{f"{of}_{by}": random.choice((64, 128, 1000)) for of in ("keys", "values") for by in ("head", "slot")},
    }  # fmt: skip


def _kv(random: Random) -> dict[str, Any]:
    places = {name: _place(random, to=4) for name in ("k", "v", "start")}
    dtypes = {"k_dtype": random.choice(FLOATS), "v_dtype": random.choice(FLOATS)}
    return {**_ring(random), **places, **dtypes, "tokens": _size(random), "cache_dtype": random.choice((0, 1, 2, 3, 4))}


def _attention(random: Random) -> dict[str, Any]:
    places = {name: _place(random, to=4) for name in ("q", "length", "out", "scratch", "k_scale", "v_scale")}
    kind = random.choice((0, 1, 3, 4, 5))
    if kind < 2:
        places |= {"k_scale": None, "v_scale": None}
    sizes = {"group": random.choice((1, 2, 4, 7)), "splits": random.choice((1, 2, 64))}
    return {**_ring(random), **places, **sizes, "cache_dtype": kind, "dtype": random.choice(FLOATS)}


def _experts(random: Random) -> dict[str, Any]:
    drawn = {name: value for name, value in _w4(random).items() if name not in ("order", "slots")}
    padded = -(-drawn["columns"] // 128) * 128
    group = random.choice((16, 48, 64, 128, padded))
    return {
        **drawn, "padded": padded, "group_size": group, "groups": -(-padded // group), "words": _place(random, to=16),
        "experts": _place(random, to=32), "x_stride": random.choice((0, drawn["x_stride"])),
        "rows": random.choice((1, 2, 8)), "wide": random.choice((0, 1)),
    }  # fmt: skip


def _gptq(random: Random) -> dict[str, Any]:
    names = ("qweight", "qzeros", "scales", "source", "table", "words", "scales_out", "zeros_out")
    columns, group = random.choice((8, 100, 128, 4096, 12288)), random.choice((16, 32, 128, 1 << 20))
    padded = -(-columns // 128) * 128
    count = -(-padded // group)
    return {
        **{name: _place(random, to=4) for name in names}, "columns": columns, "padded": padded, "group_size": group,
        "outputs": _size(random), "groups_in": count, "groups_out": count, "stored": count,
        "scale_dtype": random.choice(FLOATS), "zero_mode": random.choice((0, 1, 2)),
    }  # fmt: skip


DRAWN = {
    "mms_silu_and_mul": ("mms_act", lambda random: {**_act(random), "act": 0}),
    "mms_gelu_and_mul": ("mms_act", _act),
    "mms_rms_norm": ("mms_norm", lambda random: {**_norm(random), "residual": None, "total": None}),
    "mms_fused_add_rms_norm": ("mms_norm", _norm),
    "mms_rotary_embedding": ("mms_rotary", _rotary),
    "mms_w4_gemv": ("mms_w4", _w4),
    "mms_w4_gemm": ("mms_w4", lambda random: {**_w4(random), "rows": random.choice((1, 5, 16, 17, 64))}),
    "mms_experts_gemv": ("mms_experts", _experts),
    "mms_linear_gemv": ("mms_linear", _linear),
    "mms_gptq_shuffle": ("mms_gptq", _gptq),
    "mms_kv_store": ("mms_kv", _kv),
    "mms_decode_attention": ("mms_attention", _attention),
}


def test_all_launchers_are_held() -> None:
    assert set(DRAWN) == set(rules.LAUNCHERS)


@pytest.mark.parametrize("launcher", DRAWN)
def test_the_rules_start_what_the_launcher_starts(both: Both, launcher: str) -> None:
    struct, draw = DRAWN[launcher]
    kernels = set()
    for seed in range(DRAWS):
        fields = draw(Random(f"{launcher} {seed}"))
        getattr(both.launchers, launcher)(STRUCTS[struct](**fields), seed)
        by_launcher = both.told()
        if not by_launcher:
            continue  # a size of 0: an op does not come so far
        getattr(both.code, launcher)(STRUCTS[struct](**fields), seed)
        assert both.told() == by_launcher, fields
        kernels |= {start[0] for start in by_launcher}
    assert kernels, "nothing was compared"
    if launcher == "mms_w4_gemv":
        assert len(kernels) == 2 * (3 * 3 + 2) + 1


def test_scratch_and_splits_are_the_launchers(both: Both) -> None:
    for seed in range(DRAWS):
        random = Random(f"scratch {seed}")
        arguments = STRUCTS["mms_w4"](**_w4(random))
        assert rules.w4_scratch(arguments) == both.launchers.mms_w4_scratch(arguments) >= 0
        experts = STRUCTS["mms_experts"](**_experts(random))
        assert rules.experts_scratch(experts) == both.launchers.mms_experts_scratch(experts) >= 0
        sizes = [random.choice((0, 1, 2, 7, 64, 1000, 40000)) for _ in range(5)]
        assert rules.attention_splits(*sizes) == both.launchers.mms_attention_splits(*sizes)
