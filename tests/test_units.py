"""Sizes are powers of 1024, link speeds powers of 1000, and what is not one of them is refused with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmswap.units import GIB, MIB, format_apart, format_bytes, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * GIB), ("16G", 16 * GIB), ("300 MiB", 300 * MIB), ("0.5GiB", GIB // 2), ("4096", 4096), ("7B", 7)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "16GB", "14gb", "9" * 400, "-1GiB", "1e3", "16 potatoes", "nan"])
def test_what_is_not_a_size_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="16GiB"):
        parse_bytes(text)


def test_rates() -> None:
    assert parse_rate("24GB/s") == 24 * 10**9
    for wrong in ("24", "24GiB/s", "0GB/s", "9" * 400 + "GB/s", "fast"):
        with pytest.raises(ValueError, match="24GB/s"):
            parse_rate(wrong)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_printed_sizes_read_back_within_their_last_digit(size: int) -> None:
    assert abs(parse_bytes(format_bytes(size)) - size) <= max(1, size * 0.051)


@given(st.lists(st.integers(min_value=0, max_value=1 << 50), min_size=1, max_size=3))
def test_sizes_of_one_sentence_differ_where_they_differ(sizes: list[int]) -> None:
    texts = format_apart(*sizes)
    assert len(set(texts)) == len(set(sizes))


def test_equal_sizes_are_printed_shortly() -> None:
    assert format_apart(GIB, GIB) == ("1.0 GiB", "1.0 GiB")
    assert format_apart(1_400_000, 1_360_000) == ("1.34 MiB", "1.30 MiB")
