"""Decoder layers that repeat are traced once, each with its own layer of the cache; what may differ is always run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, build
from torch import Tensor, nn

from mmswap.llm.parts import find_parts
from mmswap.swap.dry_run import DryRun
from mmswap.swap.scratch import ScratchTable
from mmswap.swap.slot import slot_of
from mmswap.vision.tower import Call

FORMULAS = ScratchTable(None)


@pytest.mark.parametrize("name", FAMILIES)
def test_skipped_layers_change_no_figure_of_a_prefill(name: str) -> None:
    """Tokens beyond the windows of the tiny models, so that sliding layers keep a part of what they made."""
    model = build(name, layers=8)
    decoder = find_parts(model).decoder_name
    whole, short = (DryRun(model, scratch=FORMULAS, skip_repeats=skip).prefill_peak(decoder, 40) for skip in (0, 1))
    assert whole.peak.how == "trace"
    assert (short.kv_bytes, short.peak.live, short.peak.output) == (whole.kv_bytes, whole.peak.live, whole.peak.output)
    assert [(event.delta, event.op) for event in short.peak.events] == [
        (event.delta, event.op) for event in whole.peak.events
    ]


@pytest.mark.parametrize(("name", "kinds"), [("qwen2_vl", 1), ("gemma3", 2), ("qwen3_5", 2)])
def test_a_layer_of_each_kind_runs_and_the_first_one_besides(name: str, kinds: int) -> None:
    model = build(name, layers=12)
    decoder = find_parts(model).decoder_name
    dry_run, ran = DryRun(model, scratch=FORMULAS), list[int]()
    twin: Any = dry_run._twin
    for index, (_, layer) in enumerate(find_parts(twin).layers):
        first = next(layer.children())  # what is in a layer is only called where the layer is run
        first.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
    assert dry_run.prefill_peak(decoder, 40).peak.how == "trace"
    assert len(ran) == kinds + 1


class Layer(nn.Module):
    """Keeps what it made in its layer of a cache; one that is `loose` keeps something in the cache itself too."""

    def __init__(self, index: int, loose: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.layer_idx, self.loose = index, loose

    def forward(self, given: Tensor, cache: Any) -> Tensor:
        cache.layers[self.layer_idx].keys = given * self.weight
        if self.loose:
            cache.last = given + self.weight
        return given - self.weight


class Stack(nn.Module):
    def __init__(self, count: int, loose: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Layer(index, loose) for index in range(count))

    def forward(self, given: Tensor) -> tuple[Tensor, list[Any]]:
        cache = cache_of(len(self.blocks))
        for block in self.blocks:
            given = block(given, cache)
        return given, [layer.keys for layer in cache.layers]


def cache_of(count: int) -> Any:
    return SimpleNamespace(layers=[SimpleNamespace(keys=None) for _ in range(count)], update=None, last=None)


@pytest.mark.parametrize("loose", [False, True])
def test_what_each_layer_keeps_adds_up(loose: bool) -> None:
    call = Call((torch.ones(1000, 64),))
    peaks = [
        DryRun(Stack(20, loose), scratch=FORMULAS, skip_repeats=skip).tower_peak(lambda m, c: m(*c.args), call)
        for skip in (False, True)
    ]
    assert peaks[0].live == peaks[1].live == 256000 * (22 + loose)
    assert len({id(keys) for keys in peaks[1].result[1]}) == 20


@pytest.mark.parametrize(("loose", "runs"), [(False, 2), (True, 20)])
def test_a_layer_that_changes_more_than_its_own_is_always_run(
    loose: bool, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    forward = Layer.forward

    def noted(self: Layer, given: Tensor, cache: Any) -> Tensor:
        ran.append(self.layer_idx)
        return forward(self, given, cache)

    monkeypatch.setattr(Layer, "forward", noted)
    DryRun(Stack(20, loose), scratch=FORMULAS).tower_peak(
        lambda model, call: model(*call.args), Call((torch.ones(10, 64),))
    )
    assert len(ran) == runs


def test_a_cache_whose_layer_cannot_be_told_is_no_slot() -> None:
    block, cache = Layer(3, False), cache_of(4)
    found = slot_of(block, ((torch.ones(1), cache), {}))
    assert found is not None
    assert found.layer is cache.layers[3]
    assert not found.first
    assert slot_of(block, ((), {})) is None
    assert slot_of(block, ((cache, cache_of(4)), {})) is None
    assert slot_of(block, ((cache_of(3),), {})) is None
    assert slot_of(nn.Linear(1, 1), ((cache,), {})) is None
