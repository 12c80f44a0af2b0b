"""The arithmetic of true free: the least decides, bad figures never do, and the reason names who decided."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.card.budget import (
    Reading,
    Source,
    adapter_leaves,
    adjusted,
    driver_says,
    host_leaves,
    limit_leaves,
    own_account,
    simulated_free,
    true_free,
    unknown,
    wddm_bounds,
    wddm_lowers,
)

MIB, GIB = 1 << 20, 1 << 30
CARD = 16368 * MIB

# A Windows + ROCm card of 16368 MiB, asked while a process held more and more of it, and once it had freed all (MiB).
PROBE = {  # held: HIP free, budget, usage
    "0": (16227, 15569, 141),
    "10240": (5974, 15569, 10394),
    "11264": (4950, 14515, 11418),
    "14336": (1878, 14543, 14490),
    "16128": (86, 14538, 16282),
    "all freed": (16214, 15569, 1946),
}
DEFAULT = {"0": 15428, "10240": 5175, "11264": 3097, "14336": 53, "16128": -1744, "all freed": 15415}
# min(HIP free, budget - usage) less budget / 16, which is more than 512 MiB here
STRICT = {"0": 15428, "10240": 5175, "11264": 3097, "14336": 53, "16128": -1744, "all freed": 13623}

size = st.integers(0, 1 << 40)
anything = st.integers(-(1 << 50), 1 << 50)


@pytest.mark.parametrize("column", PROBE)
def test_the_probe_table_by_default(column: str) -> None:
    free, budget, _ = (figure * MIB for figure in PROBE[column])
    driver = driver_says((free, CARD), total=CARD, own_only=True)
    lowered = wddm_lowers(driver, total=CARD, budget=budget)
    reading = true_free([driver, lowered], cached=0)
    expected = DEFAULT[column] * MIB
    assert (reading.bytes, reading.over) == (max(0, expected), max(0, -expected))
    assert reading.reason.startswith(lowered.reason)
    assert not reading.doubtful


@pytest.mark.parametrize("column", PROBE)
def test_the_probe_table_in_strict_mode(column: str) -> None:
    free, budget, usage = (figure * MIB for figure in PROBE[column])
    driver = driver_says((free, CARD), total=CARD, own_only=True)
    reading = true_free([driver, wddm_bounds(driver, budget=budget, usage=usage)], cached=0)
    expected = STRICT[column] * MIB - budget // 16
    assert (reading.bytes, reading.over) == (max(0, expected), max(0, -expected))
    assert "headroom" in reading.reason


def test_strict_headroom_is_at_least_512_mib_and_taken_from_the_drivers_figure_too() -> None:
    driver = driver_says((GIB, 4 * GIB), total=4 * GIB)
    strict = wddm_bounds(driver, budget=4 * GIB, usage=0)
    assert (strict.bytes, strict.headroom) == (GIB, 512 * MIB)
    assert true_free([driver, strict]).bytes == 512 * MIB


def test_what_torch_caches_comes_on_top_of_the_lowered_figure_and_mends_what_is_over() -> None:
    driver = driver_says((86 * MIB, CARD), total=CARD)
    lowered = wddm_lowers(driver, total=CARD, budget=14538 * MIB)
    assert true_free([driver, lowered], cached=2000 * MIB).bytes == 256 * MIB
    over = true_free([driver, lowered], cached=1000 * MIB)
    assert (over.bytes, over.over) == (0, 744 * MIB)
    assert "holds 744.0 MiB more than it may" in over.reason


def test_a_budget_that_is_not_below_the_card_leaves_the_drivers_figure() -> None:
    driver = driver_says((5 * GIB, 16 * GIB), total=16 * GIB)
    for budget in (16 * GIB, 17 * GIB):
        assert wddm_lowers(driver, total=16 * GIB, budget=budget).bytes == 5 * GIB
    for budget in (0, -1):
        bad = wddm_lowers(driver, total=16 * GIB, budget=budget)
        assert true_free([driver, bad]).bytes == 5 * GIB
        assert true_free([driver, bad]).doubtful


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("asking for it failed: hipErrorNotSupported", "hipErrorNotSupported"),
        ((0, 0), "a card of 0 bytes"),
        ((5, 0), "a card of 0 bytes"),
        ((0, -7), "a card of 0 bytes"),
        ((17 * GIB, 16 * GIB), "free of"),
        ((-1, 16 * GIB), "-1 bytes free"),
        ((16 * GIB, 16 * GIB), "whatever is held"),
        ((15 * GIB, 15 * GIB + GIB // 2), "an aperture of the 96.0 GiB"),
    ],
)
def test_a_driver_that_lies_is_unknown_with_its_cause_and_never_decides(
    answer: tuple[int, int] | str, cause: str
) -> None:
    total = 96 * GIB if "aperture" in cause else 16 * GIB
    driver = driver_says(answer, total=total, own_only=True)
    assert driver.bytes is None
    assert driver.reason.startswith("unknown, because ")
    assert cause in driver.reason
    reading = true_free([driver, own_account(total=total, reserved=3 * GIB)], cached=GIB)
    assert (reading.bytes, reading.doubtful) == (total - 2 * GIB, True)
    assert f"driver cannot be used: {driver.reason.removeprefix('unknown, because ')}" in reading.reason


def test_a_whole_card_free_is_a_lie_on_windows_rocm_alone() -> None:
    assert driver_says((GIB, GIB), total=GIB).bytes == GIB
    assert driver_says((GIB, GIB), total=GIB, own_only=True).bytes is None


def test_a_driver_that_knows_slightly_less_than_the_whole_card_is_believed() -> None:
    assert driver_says((GIB, 15_700 * MIB), total=CARD).bytes == GIB


def test_when_the_driver_lies_windows_lowers_the_own_account() -> None:
    driver = driver_says((CARD, CARD), total=CARD, own_only=True)
    account = own_account(total=CARD, reserved=11264 * MIB)
    assert wddm_lowers(driver, total=CARD, budget=14515 * MIB).bytes is None
    assert wddm_lowers(account, total=CARD, budget=14515 * MIB).bytes == (14515 - 11264) * MIB


def test_with_nothing_known_nothing_is_free_and_the_way_out_is_named() -> None:
    reading = true_free([unknown("driver", "it raised"), own_account(total=0, reserved=0)], cached=0)
    assert (reading.bytes, reading.doubtful) == (0, True)
    assert "--vram-limit" in reading.reason


def test_everybodys_usage_and_what_the_driver_keeps() -> None:
    assert adapter_leaves("PDH", total=100, used=60).bytes == 40
    kept = adapter_leaves("PDH", total=100, used=60, regained=20)
    assert kept.bytes == 60
    assert "keeps for it" in kept.reason
    for total, used in ((100, 101), (100, -1), (0, 0), (-5, 0)):
        assert adapter_leaves("PDH", total=total, used=used).bytes is None


def test_a_cap_counts_what_is_held_and_names_its_flag() -> None:
    cap = limit_leaves(limit=8 * GIB, reserved=3 * GIB)
    reading = true_free([driver_says((10 * GIB, 16 * GIB), total=16 * GIB), cap], cached=GIB)
    assert reading.bytes == 6 * GIB
    assert "--vram-limit allows 8.0 GiB" in reading.reason


def test_host_memory_keeps_headroom_because_the_process_grows_beside_the_card() -> None:
    assert true_free([host_leaves(64 * GIB)]).bytes == 60 * GIB
    assert true_free([host_leaves(2 * GIB)]).bytes == 1536 * MIB
    assert host_leaves(None).bytes is None
    nothing_left = true_free([driver_says((50 * GIB, 62 * GIB), total=62 * GIB), host_leaves(0)], cached=GIB)
    assert nothing_left.bytes == 512 * MIB


def test_bytes_more_or_less_meet_what_is_over_first() -> None:
    assert adjusted(Reading(0, "full", over=5), 8, "and 8 idle") == Reading(3, "full, and 8 idle")
    assert adjusted(Reading(0, "full", over=5), 3, "and 3 idle") == Reading(0, "full, and 3 idle", over=2)
    assert adjusted(Reading(4, "free"), -10, "less 10") == Reading(0, "free, less 10", over=6)
    same = Reading(4, "free")
    assert adjusted(same, 0, "nothing") is same


@given(capacity=size, claims=st.lists(size, max_size=4), budget=st.none() | anything)
def test_a_simulated_card_is_exact(capacity: int, claims: list[int], budget: int | None) -> None:
    reading = simulated_free(capacity, {str(i): claim for i, claim in enumerate(claims)}, budget=budget)
    allowed = capacity if budget is None else max(0, min(capacity, budget))
    assert reading.bytes - reading.over == allowed - sum(claims)
    assert reading.bytes == 0 or reading.over == 0


@st.composite
def situations(draw: st.DrawFn) -> list[Source]:
    """Every source at once, with figures that may make no sense."""
    total, reserved = draw(anything), draw(size)
    driver = driver_says(
        draw(st.text(max_size=5) | st.tuples(anything, anything)), total=total, own_only=draw(st.booleans())
    )
    account = own_account(total=total, reserved=reserved)
    base = account if driver.bytes is None else driver
    budget, usage = draw(anything), draw(anything)
    return [
        driver,
        account,
        wddm_lowers(base, total=total, budget=budget),
        wddm_bounds(base, budget=budget, usage=usage),
        adapter_leaves("PDH", total=total, used=draw(anything)),
        adapter_leaves("amdgpu sysfs", total=draw(anything), used=draw(anything)),
        host_leaves(draw(anything)),
        limit_leaves(limit=draw(size), reserved=reserved),
    ]


@given(situations(), size)
def test_the_answer_is_never_negative_never_above_a_source_and_names_its_decider(
    sources: list[Source], cached: int
) -> None:
    reading = true_free(sources, cached=cached)
    known = [source for source in sources if source.bytes is not None]
    assert reading == true_free(sources, cached=cached)
    assert reading.bytes >= 0 <= reading.over
    assert reading.bytes == 0 or reading.over == 0
    for source in known:
        assert source.bytes is not None
        assert reading.bytes <= max(0, source.bytes - source.headroom + cached)
    for source in sources:
        assert (source.bytes is None) == source.reason.startswith("unknown, because")
    deciders = [s for s in known if (s.bytes or 0) - s.headroom + cached == reading.bytes - reading.over]
    assert any(reading.reason.startswith(source.reason) for source in deciders)
    assert reading.sources[:-1] == tuple(sources)
    assert reading.doubtful == any(source.doubtful for source in sources)


@given(situations(), st.integers(0, 7), size)
def test_a_source_that_becomes_unknown_never_lowers_the_answer(sources: list[Source], which: int, cached: int) -> None:
    before = true_free(sources, cached=cached)
    sources[which] = unknown(sources[which].name, "it was unplugged")
    after = true_free(sources, cached=cached)
    if any(source.bytes is not None for source in sources):
        assert after.bytes - after.over >= before.bytes - before.over
    else:
        assert after.bytes == 0


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Reading(1, "x").bytes = 2  # type: ignore[misc]
