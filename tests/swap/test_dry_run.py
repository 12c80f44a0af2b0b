"""Dry runs: the twin, kept answers, skipped repeats, prefill, the 300 MiB fallback, and that nothing is spent."""

from __future__ import annotations

import gc
import logging
import threading
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, build, inputs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mmswap.swap import repeat
from mmswap.swap.dry_run import FALLBACK, DryRun, measure
from mmswap.swap.event import Event
from mmswap.swap.fake import fake_twin, is_fake
from mmswap.swap.peak import Peak
from mmswap.swap.scratch import ScratchTable
from mmswap.swap.tracker import LiveTracker
from mmswap.units import MIB
from mmswap.vision.tower import Call, find_tower

FORMULAS = ScratchTable(None)


def run(twin: nn.Module, call: Call) -> Any:
    return find_tower(twin).run(call)


def forward(twin: nn.Module, call: Call) -> Any:
    return twin(*call.args)


def gist(peak: Peak) -> list[tuple[int, str]]:
    return [(event.delta, event.op) for event in peak.events]


# --- the twin ---------------------------------------------------------------------------------------------------------


def test_a_twin_has_ties_real_indices_and_no_numbers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("order", torch.arange(8))
            self.register_buffer("scale", torch.ones(4))

    net = Net()
    twin: Any = fake_twin(net)
    assert twin.head.weight is twin.embed.weight
    assert is_fake(twin.head.weight)
    assert is_fake(twin.scale)
    assert twin.order.tolist() == list(range(8))
    assert twin.order is not net.order
    assert not is_fake(net.head.weight)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma4", "smolvlm"])
def test_a_trace_is_the_real_run_event_by_event(name: str) -> None:
    model = build(name)
    tower = find_tower(model)
    call = tower.call_for(inputs(name, model))
    with LiveTracker() as real:
        features = tower.run(call)
    traced = DryRun(model, scratch=FORMULAS).tower_peak(run, call)
    lifetimes = [pair for pair in gist(traced) if not pair[1].startswith("scratch:")]
    idents = {event.ident for event in traced.events if event.op.startswith("scratch:")}
    deaths = sum(1 for event in traced.events if event.delta < 0 and event.ident not in idents)
    assert features is not None
    assert [pair for pair in lifetimes if pair[0] > 0] == [(e.delta, e.op) for e in real.events if e.delta > 0]
    assert deaths == sum(1 for event in real.events if event.delta < 0)
    assert (traced.live, traced.how) == (real.peak, "trace")


# --- repeats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_skipped_repeats_change_no_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    call = find_tower(model).call_for(inputs(name, model))
    whole = DryRun(model, scratch=FORMULAS, skip_repeats=False).tower_peak(run, call)
    noted = DryRun(model, scratch=FORMULAS).tower_peak(run, call)
    assert gist(noted) == gist(whole)
    monkeypatch.setattr(repeat, "_MOST_EVENTS", 0)
    short = DryRun(model, scratch=FORMULAS).tower_peak(run, call)
    assert (short.live, short.with_scratch, short.output) == (whole.live, whole.with_scratch, whole.output)


class Deep(nn.Module):
    """Blocks of two kinds, of which the last may keep what it made."""

    def __init__(self, count: int, keeping: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(count))
        self.keeping, self.kept, self.ran = keeping, list[Tensor](), 0
        for block in self.blocks:
            block.register_forward_hook(self._count)

    def _count(self, _module: nn.Module, _args: Any, result: Tensor) -> None:
        if self.keeping:
            self.kept.append(result)

    def forward(self, given: Tensor) -> Tensor:
        for block in self.blocks:
            given = block(given)
        return given


@pytest.mark.parametrize("keeping", [False, True])
def test_a_deep_stack_is_traced_once_and_kept_outputs_add_up(keeping: bool) -> None:
    call = Call((torch.ones(1000, 64),))
    whole = DryRun(Deep(40, keeping), scratch=FORMULAS, skip_repeats=False).tower_peak(forward, call)
    short = DryRun(Deep(40, keeping), scratch=FORMULAS).tower_peak(forward, call)
    assert (short.live, short.total) == (whole.live, whole.total)
    assert whole.live == 256000 * (41 if keeping else 3)


class Hoarder(nn.Module):
    """A block that keeps bytes which are not in its result: it must always be run."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, given: Tensor) -> Tensor:
        self.kept = given * self.weight
        return self.kept + 1


def test_a_block_that_keeps_something_is_never_skipped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Hoarder() for _ in range(6))

        def forward(self, given: Tensor) -> Tensor:
            for block in self.blocks:
                given = block(given)
            return given

    call = Call((torch.ones(1000, 64),))
    assert DryRun(Net(), scratch=FORMULAS).tower_peak(forward, call).live == 256000 * 8


# --- answers ----------------------------------------------------------------------------------------------------------


class Steered(nn.Module):
    """Takes as many steps as an integer says: its values, not only its shape, are part of the question."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = 0

    def forward(self, given: Tensor, steps: Tensor) -> list[Tensor]:
        self.ran += 1
        return [given * 2 for _ in range(int(steps))]


def test_answers_are_kept_by_shapes_and_by_the_values_of_integers() -> None:
    model = Steered()
    dry_run = DryRun(model, scratch=FORMULAS)

    def ask(steps: int) -> Peak:
        return dry_run.tower_peak(forward, Call((torch.ones(256), torch.tensor(steps))))

    assert [ask(steps).output for steps in (1, 3, 1)] == [1024, 3072, 1024]
    assert ask(3) is ask(3)
    assert model.ran == 0
    assert dry_run._twin is not None
    assert dry_run._twin.ran == 2


def test_a_worker_thread_gets_the_same_answer() -> None:
    model = build("qwen2_vl")
    call = find_tower(model).call_for(inputs("qwen2_vl", model))
    answers: list[Peak] = []
    threads = [
        threading.Thread(target=lambda: answers.append(DryRun(model, scratch=FORMULAS).tower_peak(run, call)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mine = DryRun(model, scratch=FORMULAS).tower_peak(run, call)
    assert [(answer.live, answer.total) for answer in answers] == [(mine.live, mine.total)] * 2


def test_what_cannot_be_traced_is_300_mib_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_twin: nn.Module, _call: Call) -> Any:
        raise ValueError("no such thing")

    with caplog.at_level(logging.WARNING, "mmswap.swap.dry_run"):
        peak = DryRun(nn.Linear(4, 4)).tower_peak(broken, Call(()))
    assert (peak.live, peak.with_scratch, peak.total) == (FALLBACK, FALLBACK, 300 * MIB)
    assert peak.beyond(100 * MIB) == 200 * MIB
    assert peak.beyond(400 * MIB) == 0
    assert "failed: no such thing" in peak.how
    assert "300.0 MiB" in caplog.text
    assert "no such thing" in caplog.text


def test_a_model_that_has_no_twin_is_300_mib_too() -> None:
    class Stubborn(nn.Module):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot be copied")

    peak = DryRun(Stubborn()).tower_peak(forward, Call((torch.ones(1),)))
    assert peak.total == FALLBACK
    assert "cannot be copied" in peak.how


lifetimes = st.lists(st.integers(1, 5 * MIB), min_size=1, max_size=30)


@given(lifetimes, st.lists(st.integers(0, 60 * MIB), min_size=1, max_size=6))
def test_beyond_never_rises_with_what_is_lent(sizes: list[int], lent: list[int]) -> None:
    events = [Event(size, ident, "op", "") for ident, size in enumerate(sizes)]
    events += [Event(-size, ident, "", "") for ident, size in enumerate(sizes) if ident % 3]
    peak = Peak(sum(sizes), sum(sizes), 0, events, "trace")
    asked = [peak.beyond(size) for size in sorted(lent)]
    assert asked == sorted(asked, reverse=True)
    assert peak.total >= peak.live


# --- cost -------------------------------------------------------------------------------------------------------------


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_a_real_size_tower_costs_neither_memory_nor_many_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    text = {
        "hidden_size": 3584,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "vocab_size": 512,
        "num_attention_heads": 28,
    }
    config = Qwen2_5_VLConfig(vision_config=vision, text_config=text)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    patches = torch.empty(160 * 160, 1176, device="meta")  # 2240 pixels a side
    call = Call((), {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 160, 160]])}, "get_image_features")
    dry_run = DryRun(model)
    ran = []
    counted: Callable[..., Any] = LiveTracker._count
    monkeypatch.setattr(LiveTracker, "_count", lambda *args: (ran.append(1), counted(*args))[1])
    gc.collect()
    before = resident()
    tracemalloc.start()
    peak = dry_run.tower_peak(run, call)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak.how == "trace"
    assert 1100 * MIB < peak.live < 1200 * MIB
    assert resident() - before < 100 * MIB
    assert python < 60 * MIB
    assert len(ran) < 12_000  # of more than 200 000 in 32 blocks of 400 windows


def test_measure_on_the_host_is_one_real_run() -> None:
    given = torch.ones(1000, 64)
    card = SimpleNamespace(device="cpu")
    peak = measure(lambda: (given * 2).sum(0), card)
    assert (peak.live, peak.output, peak.how) == (256000 + 256, 256, "measured")
