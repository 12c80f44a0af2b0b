"""The pure side of `mmswap plan`: bytes of a cache and of packed weights, searches, bars."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmswap.errors import OptionError
from mmswap.llm.kv.kinds import BLOCK, KINDS, blocks
from mmswap.llm.kv.layout import KvLayout, KvRow
from mmswap.llm.quant import layout
from mmswap.sizing.bar import cells, colour, letter
from mmswap.sizing.limits import largest
from mmswap.sizing.packing import GROUP, packed_bytes, packed_parts
from mmswap.sizing.scales import Scale, largest_edge
from mmswap.sizing.wish import Wish, picture_size

SEVEN_B = KvLayout((KvRow(heads=4, width=128, count=28),))  # Qwen2.5-VL 7B: 28 layers, 4 key heads of 128


def test_a_cache_takes_what_its_heads_take() -> None:
    assert SEVEN_B.nbytes(32768, KINDS["fp16"]) == 2 * 28 * 4 * 128 * 2 * 32768
    assert SEVEN_B.per_token(KINDS["bf16"]) == 57344
    assert SEVEN_B.nbytes(0, KINDS["fp16"]) == 0


def test_kinds_of_the_cache_in_order() -> None:
    size = {name: SEVEN_B.nbytes(1000, kind) for name, kind in KINDS.items()}
    assert size["fp32"] == 2 * size["fp16"] == 2 * size["bf16"]
    assert size["fp8_e4m3"] == size["fp8_e5m2"] < size["int8"] < size["fp16"]
    slots = 1024  # whole blocks
    assert size["int8"] == 28 * 4 * (slots * (2 * 128 + 4) + 2 * 128 * 4)  # a scale for each token's values
    assert size["fp8_e4m3"] == 28 * 4 * (slots * 2 * 128 + (2 * 128 + 1) * 4)


@given(st.integers(1, 20_000))
def test_blocks_waste_a_quarter_at_the_most_and_never_shrink(tokens: int) -> None:
    assert tokens <= blocks(tokens) <= max(tokens * 5 // 4, tokens + 15)
    assert blocks(tokens) <= blocks(tokens + 1)
    assert blocks(blocks(tokens)) == blocks(tokens)
    assert blocks(tokens) % BLOCK == 0 or tokens <= 8 * BLOCK


def test_a_window_stops_growing_and_what_is_not_ours_is_no_block() -> None:
    kind = KINDS["fp16"]
    step = 2 * 2 * 16 * 2
    sliding = KvLayout((KvRow(2, 16, 4, window=100), KvRow(2, 16, 2)), states=1000)
    assert sliding.nbytes(50, kind) == 1000 + (4 * 64 + 2 * 64) * step
    assert sliding.nbytes(500, kind) == 1000 + (4 * 100 + 2 * 512) * step
    long = KvLayout((KvRow(2, 16, 1, window=1000),))
    assert long.nbytes(50, kind) == 64 * step
    assert long.nbytes(5000, kind) == 1000 * step
    theirs = KvLayout((KvRow(2, 16, 4, element=4),))
    assert theirs.nbytes(50, KINDS["int8"]) == 4 * 50 * 2 * step
    assert not theirs.ours
    assert sliding.ours


def test_int4_is_the_stated_formula() -> None:
    assert packed_parts(3584, 18944) == (3584 * 9472, 3584 * 148 * 2, 3584 * 148)
    assert packed_bytes(10, 128) == 10 * (64 + 2 + 1)
    assert packed_bytes(10, 129) == 2 * packed_bytes(10, 128)  # a part of a group is a whole one


@given(st.integers(1, 4096), st.integers(1, 20000))
def test_int4_is_what_the_layout_holds(rows: int, columns: int) -> None:
    assert packed_bytes(rows, columns) == layout.packed_bytes(rows, columns, GROUP)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_the_largest_fits_and_its_successor_does_not(low: int, span: int, edge: int) -> None:
    high = low + span
    found = largest(low, high, lambda n: n <= edge)
    if found is None:
        assert edge < low
    else:
        assert low <= found <= edge
        assert found == high or found + 1 > edge


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-(10**12), 10**12), min_size=1), st.integers(8, 120))
@settings(max_examples=200, deadline=None)
def test_a_bar_is_as_wide_as_it_should_be_and_shows_all_there_is(sizes: dict[str, int], width: int) -> None:
    shares = cells(sizes, width)
    there = {name for name, size in sizes.items() if size > 0}
    assert set(shares) == there
    if there:
        assert sum(shares.values()) == width
        assert all(count >= 1 for count in shares.values())


def test_a_bar_narrower_than_its_parts_shows_the_largest() -> None:
    assert {name: count for name, count in cells({"a": 1, "b": 5, "c": 2}, 2).items() if count} == {"b": 2}


def test_what_others_hold_is_grey() -> None:
    assert (letter("desktop and driver"), colour("desktop and driver")) == ("x", colour("in use already"))
    assert letter("decoder layers") == "L"


@pytest.mark.parametrize(("width", "height"), [(1344, 1344), (1920, 1080), (300, 4000), (7, 5)])
def test_scaled_pictures_keep_their_ratio_and_their_pixels(width: int, height: int) -> None:
    scale = Scale(width, height)
    assert scale.size(scale.edge) == (width, height)
    edge = scale.edge_of(10**6)
    assert math.prod(scale.size(edge)) <= 10**6 < 1.05 * math.prod(scale.size(edge + 1))


@given(st.integers(14, 64), st.integers(1, 4000), st.integers(28, 2000))
@settings(max_examples=100, deadline=None)
def test_the_largest_side_by_patches(cell: int, limit: int, known: int) -> None:
    def patches(edge: int) -> int:
        return max(1, round(edge / cell)) ** 2

    found = largest_edge(4000, patches, limit, known)
    assert patches(found) <= limit
    assert found == 4000 or patches(found + 1) > limit


@pytest.mark.parametrize("text", ["1344", "x", "1344x", "-1x5", "13.5x20", "", "1344x1344x3"])
def test_what_is_no_size_says_how_to_write_one(text: str) -> None:
    with pytest.raises(OptionError, match="1344x1008"):
        picture_size(text)


def test_sizes_in_the_usual_spellings() -> None:
    assert picture_size("1344x1008") == picture_size("1344X1008") == picture_size(" 1344 × 1008 ") == (1344, 1008)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 0}, "0x1344"),
        ({"height": 0}, "1344x0"),
        ({"width": 20000, "height": 20000}, "decoded"),
        ({"images": 0}, "--images"),
        ({"context": 3}, "--context"),
        ({"kv": "fp7"}, "fp8"),
        ({"quantize": "int3"}, "int4"),
        ({"chunk": 1}, "--prefill-chunk"),
    ],
)
def test_a_wish_that_makes_no_sense_is_one_sentence(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Wish(**wrong)  # type: ignore[arg-type]
