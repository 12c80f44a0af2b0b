"""What a plan says of its limits: each has a reason, and pictures that are encoded one at a time have theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmswap.blueprint import Blueprint
from mmswap.cli.plan_page import headline
from mmswap.runtime import carried_model
from mmswap.sizing import Wish, drawing, room_of, size_up
from mmswap.sizing.answer import NOT, ONE_BY_ONE, Limits, Sizing
from mmswap.sizing.bounds import CAP, ENCODER, PROMPT, TOKENS, sentences
from mmswap.sizing.planner import Planner
from mmswap.sizing.search import Cap, Found, limits_of

MOST = 2048


@pytest.fixture(scope="module")
def blueprint() -> Blueprint:
    return Blueprint.of(carried_model())


@pytest.fixture(scope="module")
def sizing(blueprint: Blueprint) -> Sizing:
    return size_up(blueprint, room_of("sim:1GiB"), Wish(384, 320, context=1024))


def told(sizing: Sizing, contexts: tuple[int, int], sizes: tuple[int, int], *words: str, fixed: bool = False) -> str:
    """The sentences for square pictures; `words`: what each of the four limits stops at."""
    image, window = ((size, size) for size in sizes)
    limits = Limits(*contexts, image, window, (900, 900))
    found = Found(limits, Cap(900, (900, 900), fixed), words[0], words[1], words[2], words[3], False)
    return " ".join(sentences(replace(sizing, limits=limits), found, MOST))


def test_equal_limits_say_why_a_window_does_not_help(sizing: Sizing) -> None:
    said = told(sizing, (700, 700), (500, 500), PROMPT, PROMPT, ENCODER, ENCODER)
    assert said == (
        "Beyond 700 tokens the cache leaves the smallest prefill step no room, and a window does not help: all weights "
        "are back when the prompt is read. Above 500x500 the encoder has no room, whatever gives way."
    )
    assert "does not help" not in told(replace(sizing, swaps=False), (700, 700), (5, 5), PROMPT, PROMPT, PROMPT, PROMPT)


def test_limits_that_differ_have_a_sentence_each(sizing: Sizing) -> None:
    said = told(sizing, (0, MOST), (300, 900), ENCODER, CAP, ENCODER, CAP, fixed=True)
    assert said == (
        "Without eviction, no context holds these pictures: the encoder has no room. "
        "With a window, the longest context is capped by the model: it was made for 2048 tokens. "
        "Without eviction, above 300x300 the encoder has no room. "
        "With a window, any picture fits: the tower sees about 900x900 of it, whatever its size."
    )
    said = told(sizing, (MOST, MOST), (0, 400), CAP, CAP, PROMPT, TOKENS)
    assert "Without eviction, no picture fits: the smallest prefill step has no room." in said
    assert "With a window, above 400x400 there are more tokens of pictures than a context of 1024 holds." in said


@pytest.mark.parametrize("card", ["sim:22MiB", "sim:24MiB", "sim:1GiB", "sim:8MiB"])
def test_what_a_limit_stops_at_is_really_in_the_way(blueprint: Blueprint, card: str) -> None:
    planner = Planner(blueprint, room_of(card), Wish(384, 320, context=1024))
    found = limits_of(planner)
    features = planner.cost.features
    for context, why in (
        (found.limits.context, found.context),
        (found.limits.context_with_window, found.context_with_window),
    ):
        more = (context or planner.cost.picture.tokens) + 1
        if why == CAP:
            assert context == planner.most
        else:
            assert (planner.step(more, features) is None) == (why == PROMPT)


def test_limits_with_a_window_know_that_pictures_may_be_encoded_one_at_a_time(blueprint: Blueprint) -> None:
    """Two pictures fitted one at a time, and no context was said to hold them."""
    wish = Wish(384, 320, images=40, context=MOST)
    whole = Planner(blueprint, room_of("sim:1GiB"), wish)
    held = whole.weights.total + whole.cache(MOST)
    alone = whole.pictures.cost(384, 320).total + 39 * whole.cost.features // 40
    lent = sum(rung.nbytes for rung in whole.weights.ladder)
    room = max(alone * 21 // 20 - lent, whole.reading(MOST, 16) + whole.cost.features) + 4096
    sizing = size_up(blueprint, room_of(f"sim:{held + room}"), wish)
    assert sizing.fits == ONE_BY_ONE
    assert sizing.limits.context_with_window >= MOST
    assert sizing.limits.image_with_window == sizing.limits.cap
    assert "are encoded one at a time, which needs the least room" in sizing.reasons[-1]
    idle = replace(sizing, evict=())
    assert headline(idle) == "It fits one picture at a time, 40 of 384x320 included: nothing is evicted."
    assert "CPU" not in drawing._verdict(idle)


def test_a_tower_that_sees_frames_sees_a_picture_once(blueprint: Blueprint) -> None:
    """The carried model was said to see 135x113 of a picture, twice the pixels: each is in two frames."""
    planner = Planner(blueprint, room_of("sim:1GiB"), Wish(384, 320, context=1024))
    assert limits_of(planner).cap == Cap(96, (96, 80), fixed=True)


def test_one_figure_is_missing(blueprint: Blueprint) -> None:
    """2.4 GiB in the headline, 1.9 GiB in the table, 2.2 GiB below a bar: all were called missing or too much."""
    sizing = size_up(blueprint, room_of("sim:8MiB"), Wish(384, 320, context=1024))
    assert sizing.fits == NOT
    assert sizing.moments["while the prompt is read"]["free"] == -sizing.shortfall
    figures = [reason for reason in sizing.reasons if "are missing" in reason or "larger than the card" in reason]
    assert figures[0] == "It does not fit: weights and KV cache alone are larger than the card."
    assert figures[1].endswith("MiB are missing.")
    assert len(figures) == 2
