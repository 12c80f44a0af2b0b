"""The curve a + bN + cN^2: what it must find again, and what it must never do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.swap.fit import FLOOR, Fit, fit

coefficients = st.tuples(st.integers(0, 10**7), st.integers(0, 10**5), st.integers(0, 300)).filter(any)
sizes = st.lists(st.integers(1, 40_000), min_size=4, max_size=8, unique=True)


@given(coefficients, sizes)
def test_a_curve_without_noise_is_found_again(curve: tuple[int, int, int], patches: list[int]) -> None:
    a, b, c = curve
    found = fit([(n, a + b * n + c * n * n) for n in patches])
    assert found.residual == 0
    assert (found.a, found.b, found.c) == pytest.approx(curve, rel=1e-12)
    for n in (1, 999, 100_000):
        assert found.at(n) == pytest.approx(a + b * n + c * n * n, rel=1e-9, abs=1)


@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(1, 10**11)), min_size=1, max_size=9))
def test_no_coefficient_is_below_zero_and_every_sample_lies_within_the_residual(samples: list[tuple[int, int]]) -> None:
    found = fit(samples)
    assert min(found.a, found.b, found.c) >= 0
    for patches, size in samples:
        assert abs(found.at(patches) - size) <= found.residual * size * (1 + 1e-9) + 1.01
    assert found.margin == max(FLOOR, found.residual)
    assert [found.at(n) for n in (1, 10, 100)] == sorted(found.at(n) for n in (1, 10, 100))


@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 10**9)), min_size=4, max_size=7))
def test_no_other_curve_nearby_lies_closer(samples: list[tuple[int, int]]) -> None:
    found = fit(samples)

    def strayed(a: float, b: float, c: float) -> float:
        return sum(((a + b * n + c * n * n) / size - 1) ** 2 for n, size in set(samples))

    least = strayed(found.a, found.b, found.c)
    for factors in ((1.01, 1, 1), (0.99, 1, 1), (1, 1.01, 1), (1, 0.99, 1), (1, 1, 1.01), (1, 1, 0.99)):
        assert least <= strayed(found.a * factors[0], found.b * factors[1], found.c * factors[2]) + 1e-9


def test_the_order_of_the_samples_changes_nothing() -> None:
    samples = [(256, 11_911_728), (1024, 47_646_832), (4096, 190_587_216), (9216, 428_821_168)]
    assert fit(samples) == fit(samples[::-1]) == fit([*samples, samples[0]])


def test_one_size_gives_a_line_through_nothing_and_two_a_line() -> None:
    assert fit([(4096, 8192)]) == Fit(0.0, 2.0, 0.0, 0.0, 4096)
    assert fit([(100, 1100), (200, 2100)]) == Fit(100.0, 10.0, 0.0, 0.0, 200)


def test_a_concave_curve_is_met_as_well_as_can_be_and_the_margin_says_how_badly() -> None:
    found = fit([(100, 1000), (200, 1900), (400, 3000), (800, 4000)])
    assert found.c == 0
    assert found.residual > FLOOR
    assert found.margin == found.residual


def test_attention_that_holds_its_scores_is_told_from_one_that_does_not() -> None:
    sizes = (256, 1024, 4096, 9216)
    assert fit([(n, 46_528 * n) for n in sizes]).linear
    assert not fit([(n, 20_928 * n + 160 * n * n) for n in sizes]).linear
    assert not fit([(n, 35_088 * n + 2 * n * n) for n in sizes]).linear


@pytest.mark.parametrize("samples", [[], [(0, 5)], [(5, 0)], [(-1, 5)]])
def test_samples_without_patches_or_bytes_are_refused(samples: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="patches > 0"):
        fit(samples)
