"""Where the encoder does not fit, it goes down its ladder, says so at each step, and the features stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from PIL import Image, ImageDraw
from torch.utils import _pytree as pytree

import mmswap
from mmswap.runtime import Runtime
from mmswap.vision.elsewhere import tower_at

Messages = list[dict[str, Any]]


def drawn(colour: str, size: tuple[int, int] = (120, 90)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((30, 20, 80, 70), fill=colour)
    return image


def about(*colours: str) -> Messages:
    pictures = [{"type": "image", "image": drawn(colour)} for colour in colours]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": "What is this?"}]}]


def weights_of(runtime: Runtime) -> int:
    return sum(runtime.card.claims.values())  # type: ignore[attr-defined]


def encoded(runtime: Runtime, messages: Messages) -> tuple[Any, list[str], Any]:
    """Features, what was said, and the report."""
    said: list[str] = []
    prompt = runtime.render(messages)
    job = runtime.encoder.begin(runtime.prepare(prompt).inputs, said.append)
    done = runtime.encoder.encode(job, lambda: runtime.singles(prompt), said.append)
    runtime.encoder.settle()
    return done.features, said, done.report()


def assert_same(features: Any, expected: Any) -> None:
    mine, theirs = pytree.tree_leaves(features), pytree.tree_leaves(expected)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs):
        if isinstance(one, torch.Tensor):
            error = (one.float() - other.float()).norm() / other.float().norm()
            assert float(error) < 5e-3  # the tower runs in bfloat16
    assert type(features) is type(expected)


@pytest.fixture(scope="module")
def roomy() -> Runtime:
    return mmswap.load(card="sim:1GiB")


def need_of(roomy: Runtime, *colours: str) -> int:
    roomy.encoder.cache.clear()
    return int(encoded(roomy, about(*colours))[2].need)


def small(roomy: Runtime, free: int, layers: int = -1) -> Runtime:
    return mmswap.load(card=f"sim:{weights_of(roomy) + free}", mmproj_swap_layers=layers)


def test_two_pictures_that_do_not_fit_together_are_encoded_one_at_a_time(roomy: Runtime) -> None:
    one, two = need_of(roomy, "red"), need_of(roomy, "red", "blue")
    assert roomy.encoder.pool is not None
    unit = roomy.encoder.pool.rungs[0].nbytes
    runtime = small(roomy, (one + two) // 2 - unit, layers=1)
    before = fingerprint(runtime.model)
    features, said, report = encoded(runtime, about("red", "blue"))
    assert any("All at once does not fit" in sentence for sentence in said)
    assert report.opened
    assert len(report.evicted) == 1
    assert report.spilled_bytes == 0
    roomy.encoder.cache.clear()
    assert_same(features, encoded(roomy, about("red", "blue"))[0])
    assert fingerprint(runtime.model) == before


def test_one_picture_that_does_not_fit_is_encoded_on_the_cpu(roomy: Runtime) -> None:
    one = need_of(roomy, "red")
    assert roomy.encoder.pool is not None
    unit = roomy.encoder.pool.rungs[0].nbytes
    runtime = small(roomy, max(1, (one - unit) // 2), layers=1)
    features, said, report = encoded(runtime, about("red"))
    assert [s for s in said if "All at once does not fit" in s]
    assert not [s for s in said if "One picture at a time" in s]  # there is only one
    assert "it runs on the CPU" in said[-1]
    assert not report.opened
    assert report.spilled_bytes == 0
    roomy.encoder.cache.clear()
    assert_same(features, encoded(roomy, about("red"))[0])


@pytest.mark.parametrize("failures", [1, 2])
def test_an_allocation_that_fails_evicts_one_more_unit(roomy: Runtime, failures: int) -> None:
    runtime = small(roomy, need_of(roomy, "red") - 1)
    before = fingerprint(runtime.model)
    left = failures

    def fail(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise torch.OutOfMemoryError("planted")

    hook = runtime.encoder.tower.modules[0][1].register_forward_pre_hook(fail)
    features, said, report = encoded(runtime, about("red"))
    hook.remove()
    assert len(report.evicted) == 1 + failures
    assert len([s for s in said if "ran out of memory" in s]) == failures
    roomy.encoder.cache.clear()
    assert_same(features, encoded(roomy, about("red"))[0])
    assert fingerprint(runtime.model) == before


def test_swapping_off_spills_on_a_card_too_small_and_says_how_much(roomy: Runtime) -> None:
    one = need_of(roomy, "red")
    runtime = small(roomy, one // 2, layers=0)
    _, _, report = encoded(runtime, about("red"))
    assert not report.opened
    assert report.spilled_bytes > 0
    assert report.deficit > 0
    with_window = small(roomy, one // 2)
    assert encoded(with_window, about("red"))[2].spilled_bytes == 0


def test_a_failed_dry_run_takes_300_mib_and_names_the_cause(
    roomy: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = mmswap.load(card="sim:1GiB")

    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("planted in the trace")

    monkeypatch.setattr("mmswap.vision.tower.find_tower", broken)
    _, said, report = encoded(runtime, about("green"))
    assert report.need >= 300 << 20
    assert "planted in the trace" in said[0]
    assert "planted in the trace" in caplog.text


@pytest.mark.parametrize("readings", range(1, 8))
def test_a_budget_that_falls_before_the_encoder_runs_makes_no_window_that_is_too_small(
    roomy: Runtime, readings: int
) -> None:
    """The window's own plan may find less than the encoder's did: it does not run there, it goes down its ladder."""
    roomy.encoder.cache.clear()
    held, left = weights_of(roomy), readings
    card: Any = roomy.card

    def budget(_: int) -> int:
        nonlocal left
        left -= 1
        return held + (4 << 20) if left >= 0 else held - (4 << 20)

    before = fingerprint(roomy.model, addresses=True)
    card.budget = budget
    try:
        _, said, report = encoded(roomy, about("red"))
    finally:
        card.budget = None
        roomy.encoder.cache.clear()
    assert fingerprint(roomy.model, addresses=True) == before
    assert not report.reason.startswith("It does not fit")
    if not report.opened and left < 0 and readings < 4:
        assert "runs on the CPU" in report.reason
        assert any(sentence.startswith("All at once does not fit") for sentence in said)


def test_what_is_over_the_budget_counts_in_what_plan_says(roomy: Runtime) -> None:
    """A card over its budget is not one with nothing free: `/plan` names the debt, as the window does."""
    roomy.encoder.cache.clear()
    card: Any = roomy.card
    card.budget = weights_of(roomy) - (1 << 20)
    try:
        said = roomy.plan(about("red"))
    finally:
        card.budget = None
    assert "1.0 MiB over its budget" in said[-1]


@pytest.mark.parametrize("stops_at", [None, 0, 3])
def test_a_tower_that_ran_elsewhere_is_back_at_its_addresses_even_if_moving_it_failed(
    roomy: Runtime, stops_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is allocated to come back, so a full card cannot leave the tower split over two devices."""
    before = fingerprint(roomy.model, addresses=True)
    first = next(roomy.encoder.tower.modules[0][1].parameters())
    moved, limit, inside, home = 0, stops_at, False, first.data_ptr()

    def to(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        nonlocal moved
        if moved == limit:
            raise torch.OutOfMemoryError("no memory left")
        moved += 1
        return tensor.clone()  # somewhere else

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", to)
        try:
            with tower_at(roomy.encoder.tower, torch.device("cpu")):
                limit = moved  # from now on nothing can be moved any more
                inside = first.data_ptr() != home
                raise KeyboardInterrupt
        except (torch.OutOfMemoryError, KeyboardInterrupt):
            pass
    assert inside == (stops_at is None)
    assert fingerprint(roomy.model, addresses=True) == before
