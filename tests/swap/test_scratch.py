"""What kernels take inside an op: formulas against measurements on this machine, and who is measured at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from mmswap.swap import kernels
from mmswap.swap.dry_run import calibrate
from mmswap.swap.meter import CpuMeter
from mmswap.swap.replay import ARENA
from mmswap.swap.scratch import Bound, ScratchTable
from mmswap.swap.tracker import LiveTracker

aten = torch.ops.aten
METER = CpuMeter()


def compared(func: Any, *args: Any) -> tuple[int, int]:
    """Formula and measurement of one call."""
    measured = METER.scratch(func, args, {})
    assert measured is not None
    return kernels.on_the_host(func, args, func(*args)), measured


def heads(batch: int, count: int, length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(batch, length, count, width, dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize("length", [17, 63, 64, 96, 200, 577, 800])
@pytest.mark.parametrize("width", [16, 72])
def test_flash_attention_in_fp32_is_exact(length: int, width: int) -> None:
    formula, measured = compared(kernels.SDPA, *[heads(2, 3, length, width, torch.float32)] * 3)
    assert formula == measured


@pytest.mark.parametrize("length", [17, 64, 96, 200, 577, 800])
@pytest.mark.parametrize("width", [16, 72])
def test_flash_attention_in_bf16_is_bounded(length: int, width: int) -> None:
    formula, measured = compared(kernels.SDPA, *[heads(2, 8, length, width, torch.bfloat16)] * 3)
    assert measured <= formula


@pytest.mark.parametrize("rows", [1, 16, 100, 256, 700])
@pytest.mark.parametrize(("inner", "columns"), [(64, 64), (192, 384), (384, 192), (1024, 256), (588, 1152)])
def test_matrix_products_in_bf16_are_bounded(rows: int, inner: int, columns: int) -> None:
    left, right = torch.ones(rows, inner).bfloat16(), torch.ones(columns, inner).bfloat16().t()
    for func, args in (
        (aten.mm.default, (left, right)),
        (aten.addmm.default, (torch.ones(columns).bfloat16(), left, right)),
        (aten.bmm.default, (left.expand(3, rows, inner), right.expand(3, inner, columns))),
    ):
        formula, measured = compared(func, *args)
        assert measured <= formula


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("given", "weight", "step"),
    [((1, 3, 224, 224), (192, 3, 14, 14), 14), ((64, 64, 2, 2), (256, 64, 2, 2), 2), ((2, 16, 9, 9), (8, 16, 3, 3), 1)],
)
def test_convolutions_in_fp32_are_bounded(
    given: tuple[int, ...], weight: tuple[int, ...], step: int, last: bool
) -> None:
    pixels = torch.ones(given)
    if last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    settings = (None, [step, step], [0, 0], [1, 1], False, [0, 0], 1)
    formula, measured = compared(aten.convolution.default, pixels, torch.ones(weight), *settings)
    assert measured <= formula


def test_a_pointwise_op_casts_its_operands() -> None:
    half, single = torch.ones(96, 4, 192).bfloat16(), torch.ones(96, 4, 1)
    assert compared(aten.mul.Tensor, half, single) == (96 * 4 * 192 * 4,) * 2
    assert compared(aten.mul.Tensor, single, 2.0) == (12, 12)
    assert compared(aten.div.Tensor, torch.ones(96), torch.ones(96, dtype=torch.long)) == (384, 384)


def test_reductions_cast_too() -> None:
    formula, measured = compared(aten.sum.dim_IntList, torch.ones(3, 8, 8, dtype=torch.bool), [-1, -2])
    assert measured == 3 * 8 * 8 * 8 <= formula <= measured + 12
    formula, measured = compared(aten.mean.dim, torch.ones(24, 4, 192).bfloat16(), [1])
    assert measured <= formula <= measured + 12


def test_a_strided_operand_is_copied_where_a_kernel_wants_it_contiguous() -> None:
    given = torch.ones(1, 96, 64).transpose(1, 2)
    formula, measured = compared(aten.native_layer_norm.default, given, [96], torch.ones(96), torch.ones(96), 1e-6)
    assert formula == measured == 96 * 64 * 4


def test_an_unknown_op_counts_its_weight() -> None:
    library = torch.library.Library("mmswap_test", "FRAGMENT")
    library.define("project(Tensor x, Tensor w) -> Tensor")
    library.impl("project", lambda x, w: x @ w, "CPU")
    weight = nn.Parameter(torch.ones(512, 1024), requires_grad=False)
    args = (torch.ones(4, 512), weight)
    assert kernels.on_the_host(torch.ops.mmswap_test.project.default, args, torch.ones(4, 1024)) == 512 * 1024 * 4


class CountingMeter(CpuMeter):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def scratch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        self.calls.append(func)
        return super().scratch(func, args, kwargs)


def test_small_calls_are_measured_once_and_random_ones_never() -> None:
    meter = CountingMeter()
    given = torch.ones(64, 64).bfloat16()
    state = torch.random.get_rng_state()
    with torch.no_grad(), LiveTracker(scratch=ScratchTable(meter)):
        for _ in range(3):
            given * given
        torch.bernoulli(torch.full((4,), 1.0))
    assert meter.calls.count(aten.mul.Tensor) == 1
    assert aten.bernoulli.default not in meter.calls
    after = torch.random.get_rng_state()
    torch.random.set_rng_state(state)
    torch.bernoulli(torch.full((4,), 1.0))
    assert torch.equal(after, torch.random.get_rng_state())


def test_only_what_the_peak_hangs_on_is_measured_later() -> None:
    meter = CountingMeter()
    table = ScratchTable(meter)
    left, right = torch.ones(2048, 512).bfloat16(), torch.ones(512, 512).bfloat16()
    with torch.no_grad(), LiveTracker(scratch=table) as tracker:
        kept = left @ right
        bounds = [event for event in tracker.events if isinstance(event.delta, Bound)]
        assert len(bounds) == 1
        assert aten.mm.default not in meter.calls
        before = len(meter.calls)
    settled = table.settled(tracker.events)
    assert kept.shape == (2048, 512)
    assert meter.calls[before:] == [aten.mm.default]
    assert not any(isinstance(event.delta, Bound) for event in settled)

    with torch.no_grad(), LiveTracker(scratch=ScratchTable(meter)) as tracker:
        large = torch.empty(64 << 20, dtype=torch.uint8)
        del large
        left @ right
    before = len(meter.calls)
    table.settled(tracker.events)
    assert meter.calls[before:] == []


def test_without_a_meter_formulas_answer() -> None:
    left = torch.ones(100, 64).bfloat16()
    with torch.no_grad(), LiveTracker(scratch=ScratchTable(None)) as tracker:
        left @ left.t()
    taken = [event.delta for event in tracker.events if event.op.startswith("scratch:")]
    assert [delta > 0 for delta in taken] == [True]
    assert not any(isinstance(delta, Bound) for delta in taken)


def test_arguments_are_not_written_to() -> None:
    given = torch.ones(4, dtype=torch.long)
    METER.scratch(aten.add_.Tensor, (given, 1), {})
    assert given.tolist() == [1, 1, 1, 1]


def traced(table: ScratchTable) -> int:
    left, right = torch.ones(2048, 512).bfloat16(), torch.ones(512, 512).bfloat16()
    with torch.no_grad(), LiveTracker(scratch=table) as tracker:
        kept = left @ right * 2
    assert kept.shape == (2048, 512)
    return max(event.delta for event in table.settled(tracker.events) if event.op.startswith("scratch:"))


def test_what_was_measured_is_kept_and_not_measured_again() -> None:
    meter = CountingMeter()
    table = ScratchTable(meter)
    taken = traced(table)
    assert meter.calls
    kept = json.loads(json.dumps(table.state()))
    again = CountingMeter()
    other = ScratchTable(again)
    assert other.load(kept)
    assert traced(other) == taken
    assert again.calls == []
    assert other.state() == kept


@pytest.mark.parametrize(
    "change",
    [{"device": "another processor"}, {"torch": "1.0"}, {"ops": None}, {"ops": {"mm": -1}}, {"ops": {"mm": True}}],
)
def test_figures_of_another_device_or_torch_and_damaged_ones_are_not_taken(change: dict[str, Any]) -> None:
    table = ScratchTable(CountingMeter())
    traced(table)
    other = ScratchTable(CountingMeter())
    assert not other.load({**table.state(), **change})
    assert other.state()["ops"] == {}


def test_a_table_that_goes_by_rules_keeps_and_takes_nothing() -> None:
    table = ScratchTable(CountingMeter())
    traced(table)
    rules = ScratchTable(None)
    assert not rules.load(table.state())
    assert rules.state() == {}


def test_a_calibrated_table_begins_with_what_is_known() -> None:
    table = ScratchTable(CpuMeter())
    traced(table)
    assert calibrate(ARENA, table.state()).state() == table.state()
    assert calibrate(ARENA).state()["ops"] == {}
    assert calibrate(ARENA, {"ops": "damaged"}).state()["ops"] == {}
