"""Launchers refuse what they must not start, each fault with its code, and never crash."""

from __future__ import annotations

import ctypes
from random import Random
from typing import Any

import pytest
from bounds import CASES, Case
from native import native_library

from mmswap.hip_ext.interface import FUNCTIONS, STATUS, STRUCTS
from mmswap.hip_ext.library import Library

OPTIONAL = {"bias", "weight", "order", "residual", "total", "mask", "sinks", "source", "table", "qzeros", "k_offset"}
SCALES = {"k_scale", "v_scale"}
LAUNCHERS = {name for name, (_, arguments) in FUNCTIONS.items() if len(arguments) == 2}
STRUCT = {
    "mms_silu_and_mul": "act", "mms_gelu_and_mul": "act", "mms_rms_norm": "norm", "mms_fused_add_rms_norm": "norm",
    "mms_rotary_embedding": "rotary", "mms_w4_gemv": "w4", "mms_w4_gemm": "w4", "mms_experts_gemv": "experts",
    "mms_linear_gemv": "linear",
    "mms_take_columns": "take", "mms_gptq_shuffle": "gptq", "mms_kv_store": "kv", "mms_decode_attention": "attention",
}  # fmt: skip


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    library: Library = native_library(tmp_path_factory, monkeypatch)
    return ctypes.CDLL(library.origin)


def status(opened: ctypes.CDLL, case: Case, **changes: Any) -> int:
    """What the launcher of a case says when some fields are others; `name` + 1 moves a buffer by a byte."""
    launcher, struct, buffers, fields = case
    # One more number each, at a multiple of 16 bytes, kept to the end of the call.
    held = {name: ctypes.create_string_buffer(content + bytes(48)) for name, content in buffers.items()}
    for name, buffer in held.items():
        fields = {**fields, name: -(-ctypes.addressof(buffer) // 16) * 16}
    for name in held:
        ctypes.memmove(fields[name], buffers[name], len(buffers[name]))
    moved = {name: fields[name] + 1 if value == "moved" else value for name, value in changes.items()}
    return int(getattr(opened, launcher)(ctypes.byref(STRUCTS[struct](**{**fields, **moved})), None))


def test_there_is_a_struct_for_every_launcher(opened: ctypes.CDLL) -> None:
    assert set(STRUCT) == LAUNCHERS
    for launcher in LAUNCHERS:
        assert getattr(opened, launcher)(None, None) == STATUS["NULL"], launcher
    for index, struct in enumerate(STRUCTS.values()):
        assert opened.mms_struct_size(index) == ctypes.sizeof(struct)
    assert opened.mms_struct_size(len(STRUCTS)) == -1
    assert opened.mms_struct_size(-1) == -1


def test_every_status_has_a_sentence(opened: ctypes.CDLL) -> None:
    opened.mms_status_text.restype = ctypes.c_char_p
    texts = [opened.mms_status_text(code) for code in (*STATUS.values(), STATUS["RUNTIME"] + 700, -5)]
    assert all(texts)
    assert len(set(texts)) >= len(STATUS)


@pytest.mark.parametrize("name", CASES)
def test_a_missing_or_misplaced_tensor_is_refused(opened: ctypes.CDLL, name: str) -> None:
    case = CASES[name]()
    launcher, _, buffers, fields = case
    assert status(opened, case) == 0
    needed = set(buffers) - OPTIONAL - (SCALES if fields.get("cache_dtype") != 5 else set())
    if launcher == "mms_fused_add_rms_norm":
        needed |= {"residual", "total"}
    if launcher == "mms_linear_gemv":
        needed.add("weight")
    for buffer in buffers:
        expected = STATUS["NULL"] if buffer in needed else 0
        if buffer == "order":
            expected = 0 if fields["columns"] == fields["slots"] else STATUS["SIZE"]
        assert status(opened, case, **{buffer: None}) == expected, buffer
        bytes_alone = buffer in ("zeros", "zeros_out", "mask") or (buffer in ("keys", "values") and _kind(fields) > 2)
        if not bytes_alone:
            assert status(opened, case, **{buffer: "moved"}) == STATUS["ALIGN"], buffer


def _kind(fields: dict[str, Any]) -> int:
    return int(fields.get("cache_dtype", 0)) if "scratch" not in fields and "splits" not in fields else 0


@pytest.mark.parametrize("name", CASES)
def test_sizes_and_dtypes_that_are_none_are_refused(opened: ctypes.CDLL, name: str) -> None:
    case = CASES[name]()
    fields = STRUCTS[case[1]]._fields_
    for field, kind in fields:
        if field.endswith("dtype"):
            missing = {"weight_dtype": "weight", "bias_dtype": "bias", "offset_dtype": "k_offset"}
            missing |= {"k_scale_dtype": "k_scale", "v_scale_dtype": "v_scale", "sinks_dtype": "sinks"}
            used = field not in missing or missing[field] in case[2]
            for wrong in (-1, 6, 77):
                assert status(opened, case, **{field: wrong}) == (STATUS["DTYPE"] if used else 0), field
        elif kind is ctypes.c_int32 and field in ("rows", "outputs", "features", "tokens", "batch", "heads", "slots"):
            assert status(opened, case, **{field: -1}) in (STATUS["SIZE"], STATUS["VALUE"]), field


def test_numbers_that_do_not_belong_together_are_refused(opened: ctypes.CDLL) -> None:
    size, value, dtype, align = (STATUS[name] for name in ("SIZE", "VALUE", "DTYPE", "ALIGN"))
    faults = [
        ("gemv", {"rows": 5}, size), ("gemv", {"padded": 1152}, size), ("gemv", {"padded": 1281}, size),
        ("gemv", {"groups": 9}, size), ("gemv", {"group_size": 100}, value), ("gemv", {"group_size": 0}, value),
        ("gemv", {"columns": 1279}, size), ("gemv", {"columns": 0, "slots": 0}, size), ("gemv", {"dtype": 2}, dtype),
        ("gemv", {"padded": 1 << 21, "slots": 1 << 21, "columns": 1 << 21, "groups": 1 << 14}, size),
        ("gemm", {"rows": 70000}, size), ("experts", {"rows": 70000}, size), ("experts", {"groups": 1}, size),
        ("experts", {"columns": 257}, size), ("experts", {"group_size": 24}, value), ("experts", {"dtype": 2}, dtype),
        ("linear", {"rows": 5}, size), ("linear", {"dtype": 2}, dtype),
        ("linear", {"columns": -8}, size), ("rotary", {"turned": 11}, size), ("rotary", {"turned": 22}, size),
        ("rotary", {"sections": 9}, value), ("rotary", {"sections": 2}, value), ("rotary", {"axes": 0}, value),
        ("rotary", {"sections": -1}, value), ("gptq", {"padded": 255}, size), ("gptq", {"groups_out": 15}, size),
        ("gptq", {"stored": 17}, size), ("gptq", {"zero_mode": 3}, value), ("gptq", {"group_size": 0}, size),
        ("gptq", {"stored": 10, "table": None}, size), ("kv 0", {"k_channels": 513}, size),
        ("kv 0", {"k_scale": 16}, value), ("kv 0", {"v_scale": 16}, value), ("attention f16", {"v_scale": 16}, value),
        ("attention f16", {"k_channels": 41}, size), ("attention f16", {"v_channels": 520}, size),
        ("attention f16", {"splits": 0}, value), ("attention f16", {"splits": 65}, value),
        ("attention f16", {"soft_cap": -1.0}, value), ("attention f16", {"soft_cap": float("nan")}, value),
        ("attention f16", {"keys_slot": 41}, align), ("attention f16", {"values_head": 4}, align),
        ("attention f16", {"cache_dtype": 2}, dtype), ("act", {"act": 7}, 0),
    ]  # fmt: skip
    for name, changes, expected in faults:
        assert status(opened, CASES[name](), **changes) == expected, (name, changes)
    gelu = ("mms_gelu_and_mul", *CASES["act"]()[1:])
    assert [status(opened, gelu, act=act) for act in (-1, 0, 1, 2, 3)] == [value, value, 0, 0, value]


def test_nothing_to_do_is_no_error(opened: ctypes.CDLL) -> None:
    for name, make in CASES.items():
        for field in {"rows", "outputs", "features", "tokens", "batch"} & set(make()[3]):
            nothing = dict.fromkeys(make()[2])
            assert status(opened, make(), **{field: 0}, **nothing) == 0, (name, field)


def test_any_numbers_without_tensors_start_nothing(opened: ctypes.CDLL) -> None:
    """Drawn numbers in every field, no tensors: a code, never a crash."""
    random, seen = Random(7), set()
    for _ in range(4000):
        launcher, struct = random.choice(list(STRUCT.items()))
        arguments = STRUCTS[f"mms_{struct}"]()
        for field, kind in arguments._fields_:
            if kind in (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32) and random.random() < 0.8:
                setattr(arguments, field, random.choice((-1, 0, 1, 2, 5, 16, 128, 2**31 - 1, -(2**31))))
        seen.add(getattr(opened, launcher)(ctypes.byref(arguments), None))
    assert seen <= {0, *(STATUS[name] for name in ("NULL", "SIZE", "DTYPE", "ALIGN", "VALUE"))}


def test_scratch_is_asked_for_where_x_must_be_laid_anew(opened: ctypes.CDLL) -> None:
    opened.mms_w4_scratch.restype = ctypes.c_int64
    struct = STRUCTS["mms_w4"]
    plain = {"x": 64, "words": 64, "scales": 64, "zeros": 64, "out": 64, "rows": 2, "outputs": 3, "columns": 256}
    plain |= {"slots": 256, "padded": 256, "group_size": 128, "groups": 2, "x_stride": 256}
    odd = {"columns": 200, "slots": 200}
    for changes, expected in (
        ({}, 0), ({"x": 66}, 1024), ({"x_stride": 257}, 1024), ({"x_stride": 257, "rows": 1}, 0), (odd, 1024),
        ({"order": 64}, 1024), ({"rows": 0, "x": 66}, 0), ({"x": None}, -1), ({"groups": 3}, -1),
    ):  # fmt: skip
        assert opened.mms_w4_scratch(ctypes.byref(struct(**{**plain, **changes}))) == expected, changes
    assert opened.mms_w4_scratch(None) == -1


def test_slots_are_split_among_enough_blocks_and_no_more(opened: ctypes.CDLL) -> None:
    splits = opened.mms_attention_splits
    assert [splits(1, 8, 4, slots, 96) for slots in (1, 128, 129, 4096, 100000)] == [1, 1, 2, 32, 48]
    assert splits(1, 1, 1, 1 << 20, 1000) == 64
    assert splits(64, 32, 8, 4096, 96) == 1
    assert splits(0, 1, 1, 5, 96) == splits(1, 1, 1, 0, 96) == splits(1, 1, 1, 5, -3) == 1
