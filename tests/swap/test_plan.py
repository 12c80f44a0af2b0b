"""The plan is pure arithmetic: what holds for every need, free and ladder."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmswap.swap.plan import Plan, Rung, plan

HERE = Path(__file__).parent  # not the root: `-c` would put ./mmswap before the installed package

SIZES = st.lists(st.integers(0, 1000), max_size=8)
BYTES = st.integers(0, 6000)
MARGINS = st.sampled_from([0.0, 0.05, 0.1, 0.333, 1.0])


def ladder_of(sizes: list[int]) -> list[Rung]:
    return [Rung(f"unit.{index}", size) for index, size in enumerate(sizes)]


def with_margin(need: int, margin: float) -> int:
    return math.ceil(need * (1 + Fraction(str(margin))))


@given(BYTES, BYTES, SIZES, MARGINS)
def test_adaptive_takes_the_smallest_prefix_that_covers_the_deficit(
    need: int, free: int, sizes: list[int], margin: float
) -> None:
    made = plan(need, free, ladder_of(sizes), margin=margin)
    total = with_margin(need, margin)
    assert made.need == total
    assert made.deficit == max(0, total - free)
    covering = [count for count in range(len(sizes) + 1) if sum(sizes[:count]) >= made.deficit]
    if covering:
        assert len(made.evict) == covering[0]
        assert made.shortfall == 0
    else:
        assert sum(sizes[: len(made.evict)]) == sum(sizes)
        assert made.shortfall == made.deficit - sum(sizes)
    assert made.evict == tuple(f"unit.{index}" for index in range(len(made.evict)))
    assert made.lent == sum(sizes[: len(made.evict)])


@given(BYTES, BYTES, SIZES, MARGINS)
def test_nothing_is_evicted_where_there_is_room(need: int, extra: int, sizes: list[int], margin: float) -> None:
    made = plan(need, with_margin(need, margin) + extra, ladder_of(sizes), margin=margin)
    assert (made.evict, made.lent, made.shortfall, made.deficit) == ((), 0, 0, 0)


@given(BYTES, BYTES, SIZES, st.integers(0, 10))
def test_a_number_of_layers_is_obeyed(need: int, free: int, sizes: list[int], layers: int) -> None:
    made = plan(need, free, ladder_of(sizes), layers=layers)
    assert len(made.evict) == min(layers, len(sizes))
    assert made.shortfall == max(0, made.need - made.lent - free)


@given(BYTES, BYTES, BYTES, SIZES)
def test_more_need_or_less_free_never_evicts_less(need: int, free: int, step: int, sizes: list[int]) -> None:
    ladder = ladder_of(sizes)
    base = plan(need, free, ladder)
    hungrier = plan(need + step, free, ladder)
    roomier = plan(need, free + step, ladder)
    assert hungrier.lent >= base.lent >= roomier.lent
    assert hungrier.shortfall >= base.shortfall >= roomier.shortfall
    assert len(hungrier.evict) >= len(base.evict) >= len(roomier.evict)


@example(1, 0, [1], 0.05)
@given(BYTES, BYTES, SIZES, MARGINS)
def test_a_need_that_is_a_function_of_lent_bytes_means_the_same(
    need: int, free: int, sizes: list[int], margin: float
) -> None:
    """Up to rounding: the function is asked about whole bytes before the margin."""
    made = plan(lambda lent: max(0, need - lent), free, ladder_of(sizes), margin=margin)
    known = plan(need, free, ladder_of(sizes), margin=margin)
    assert made.need == known.need
    assert 0 <= made.shortfall - known.shortfall <= 2 + margin
    if not known.shortfall:  # a unit of a byte or two is worth nothing after rounding, where nothing is enough
        assert len(made.evict) >= len(known.evict)


@given(st.lists(BYTES, min_size=1, max_size=9), BYTES, SIZES)
def test_any_function_is_covered_by_the_first_prefix_that_can(steps: list[int], free: int, sizes: list[int]) -> None:
    ladder = ladder_of(sizes)
    lents = [sum(sizes[:count]) for count in range(len(sizes) + 1)]

    def outside(lent: int) -> int:  # fragmentation: not even monotone
        return steps[lent % len(steps)]

    made = plan(outside, free, ladder, margin=0.0)
    enough = [count for count, lent in enumerate(lents) if outside(lent) <= free]
    if enough:
        assert len(made.evict) == enough[0]
        assert made.shortfall == 0
    else:
        assert made.shortfall == min(outside(lent) for lent in lents) - free > 0


def test_a_prefix_is_not_enough_when_its_bytes_cannot_be_used_in_one_piece() -> None:
    """Live bytes say one layer, the replay in the lent slabs says two (lab table: one too few in 3 of 5 cases)."""
    growth = {0: 409, 444: 120, 888: 0}
    made = plan(lambda lent: growth[lent], 0, [Rung("a", 444), Rung("b", 444)], margin=0.0)
    assert made.evict == ("a", "b")


def test_the_margin_is_exact_in_decimal() -> None:
    assert plan(100, 0, [], margin=0.05).need == 105
    assert plan(101, 0, [], margin=0.05).need == 107


def test_cost_and_reasons() -> None:
    ladder = [Rung("layers.1", 2048), Rung("layers.0", 2048)]
    made = plan(4096, 1024, ladder, margin=0.0, link_rate=1024)
    assert made == Plan(
        evict=("layers.1", "layers.0"),
        need=4096,
        free=1024,
        deficit=3072,
        lent=4096,
        shortfall=0,
        restore_seconds=4.0,
        reason="Evicting 2 units lends 4.0 KiB because the encoder needs 4.0 KiB and 1.0 KiB are free, "
        "3.0 KiB too few.",
    )
    reasons = {
        plan(1, 9, ladder).reason,
        plan(9000, 9, ladder).reason,
        plan(9000, 9, []).reason,
        plan(9000, 9, ladder, layers=0).reason,
        plan(9000, 9, ladder, layers=1).reason,
        plan(9000, 9, ladder, layers=7).reason,
    }
    assert len(reasons) == 6
    assert all(reason.endswith(".") and reason[0].isupper() for reason in reasons)
    assert plan(1, 9, ladder).restore_seconds is None


@pytest.mark.parametrize("wrong", [{"layers": -2}, {"margin": -0.1}, {"free": -1}, {"need": -1}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    given_: dict[str, object] = {"need": 1, "free": 1, "ladder": [], **wrong}
    with pytest.raises(ValueError):
        plan(**given_)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Rung("x", -1)


def test_plan_and_budget_need_no_torch() -> None:
    code = "import sys, mmswap.swap.plan, mmswap.card.budget; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False).returncode == 0
