"""Drawing is a function of the random state, and every answer is well defined."""

from random import Random

import numpy as np
import pytest
from draw import LAYOUTS, MOST, ZONES, draw
from questions import KINDS, capability, questions


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("size", [(96, 96), (97, 211), (300, 120)])
def test_the_same_seed_draws_the_same_picture(layout: str, size: tuple[int, int]) -> None:
    first, again, other = (draw(Random(seed), *size, layout) for seed in (5, 5, 6))
    assert first.image.size == size
    assert np.array_equal(first.image, again.image)
    assert questions(first, Random(1)) == questions(again, Random(1))
    assert not np.array_equal(first.image, other.image)


def test_every_kind_is_asked_and_answered_from_its_list() -> None:
    seen = {capability(Random(0)).kind}
    for seed in range(200):
        scene = draw(Random(seed), 120, 90)
        assert len(scene.things) <= MOST
        for one in questions(scene, Random(seed)):
            seen.add(one.kind)
            assert one.text
            assert one.answer
            assert one.kind not in ("where", "where_of") or one.answer in ZONES
    assert seen == set(KINDS)


def test_things_lie_inside_the_picture_and_apart() -> None:
    for seed in range(100):
        scene = draw(Random(seed), 128, 80, "same")
        for index, thing in enumerate(scene.things):
            assert thing.radius < thing.x < 128 - thing.radius
            assert thing.radius < thing.y < 80 - thing.radius
            for other in scene.things[:index]:
                assert (thing.x - other.x) ** 2 + (thing.y - other.y) ** 2 > (thing.radius + other.radius) ** 2
