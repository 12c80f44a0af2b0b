"""Live bytes of real code: what is counted, when it dies, and what the tracker must not hold on to."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from mmswap.swap.event import SCRATCH
from mmswap.swap.tracker import LiveTracker

KIB = 1024


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_peak_and_live_of_a_known_chain(mode: type) -> None:
    given = torch.ones(256)  # 1 KiB that existed before
    with mode(), LiveTracker() as tracker:
        doubled = given * 2
        tripled = given * 3
        total = doubled + tripled
        del doubled, tripled
        gc.collect()
    assert (tracker.peak, tracker.live) == (3 * KIB, KIB)
    del total
    assert tracker.live == 0
    assert [event.delta for event in tracker.events] == [KIB, KIB, KIB, -KIB, -KIB, -KIB]


def test_views_and_in_place_ops_make_nothing() -> None:
    given = torch.ones(256)
    with torch.no_grad(), LiveTracker() as tracker:
        view = given.view(16, 16).t()
        view.add_(1)
        given.relu_()
    assert (tracker.peak, tracker.events) == (0, [])


def test_tensors_made_from_python_are_counted() -> None:
    with LiveTracker() as tracker:
        kept = torch.tensor([1, 2, 3])
    assert kept.numel() == 3
    assert tracker.live == 24


def test_no_tensor_is_kept_alive() -> None:
    with torch.no_grad(), LiveTracker():
        made = torch.ones(8) * 2
        alive = weakref.ref(made)
        del made
        assert alive() is None


def test_composite_ops_are_taken_apart_in_inference_mode() -> None:
    layer, given = nn.Linear(64, 64), torch.ones(2, 3, 64)

    def events(mode: type) -> list[tuple[int, str]]:
        with mode(), LiveTracker() as tracker:
            layer(given)
        return [(event.delta, event.op) for event in tracker.events]

    assert events(torch.inference_mode) == events(torch.no_grad) != []


def test_modules_are_named_and_hooks_are_gone_after() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU()))
    with torch.no_grad(), LiveTracker(net) as tracker:
        net(torch.ones(1, 4))
    made = [event.module for event in tracker.events if event.op in ("aten.addmm.default", "aten.gelu.default")]
    assert made == ["0", "1.0"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_an_exception_leaves_no_hook_and_no_mode() -> None:
    net = nn.Linear(4, 4)
    tracker = LiveTracker(net)
    with pytest.raises(RuntimeError), torch.no_grad(), tracker:
        net(torch.ones(1, 5))
    assert not net._forward_hooks
    before = len(tracker.events)
    torch.ones(4) + 1
    assert len(tracker.events) == before


def test_scratch_is_noted_but_not_live() -> None:
    with torch.no_grad(), LiveTracker(scratch=lambda *_: 5000) as tracker:
        kept = torch.ones(256)
    assert kept.numel() == 256
    assert (tracker.live, tracker.peak, tracker.peak_with_scratch) == (KIB, KIB, KIB + 5000)
    assert [event.delta for event in tracker.events if event.op.startswith(SCRATCH)] == [5000]
