"""A limit on pixels that a request gives is held, as the flag would hold it, or refused (kind A12 of the cases)."""

from __future__ import annotations

from typing import Any

import pytest
from serving import CHAT, asks, error_of, picture, shape, text
from starlette.testclient import TestClient

from mmswap.config import ImageConfig
from mmswap.runtime import Runtime, carried_model
from mmswap.vision.processor import load_processor

PHOTO = shape(size=(1200, 900))
MOST = 9216  # pixels that the carried model looks at


def tokens_of(client: TestClient, *parts: dict[str, Any], **more: Any) -> int:
    answer = client.post(CHAT, json=asks([*parts, text("?")], max_tokens=1, **more))
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens"])


def by_flag(**limits: int) -> int:
    """Tokens of the same prompt under a server's flag."""
    processor = load_processor(carried_model(), ImageConfig(**limits))
    slots = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    return int(processor.prepare(processor.render(slots), [PHOTO]).inputs["input_ids"].shape[1])


@pytest.mark.parametrize("limits", [{"max_pixels": 2000}, {"max_pixels": 7000}, {"min_pixels": MOST}], ids=str)
def test_a_limit_is_held_wherever_it_stands(client: TestClient, limits: dict[str, int]) -> None:
    wanted = by_flag(**limits)
    plain = picture(PHOTO)
    assert (wanted == tokens_of(client, plain)) == ("min_pixels" in limits)
    assert tokens_of(client, picture(PHOTO, **limits)) == wanted
    assert tokens_of(client, {**plain, **limits}) == wanted
    assert tokens_of(client, plain, mm_processor_kwargs=limits) == wanted
    assert tokens_of(client, picture(PHOTO, max_pixels=MOST), mm_processor_kwargs={"max_pixels": 2000}) == by_flag()


def test_pictures_of_one_request_have_limits_of_their_own(client: TestClient) -> None:
    small, usual = by_flag(max_pixels=2000), by_flag()
    one = tokens_of(client, picture(PHOTO))
    assert one == usual
    both = tokens_of(client, picture(PHOTO, max_pixels=2000), picture(PHOTO))
    assert both - one == small - usual + tokens_of(client, picture(PHOTO), picture(PHOTO)) - one


def test_the_next_question_about_a_picture_looks_at_it_anew_with_other_limits(client: TestClient) -> None:
    body = asks([picture(PHOTO), text("What colour is the shape?")], max_tokens=1)
    assert client.post(CHAT, json=body).status_code == 200
    other = asks([picture(PHOTO, max_pixels=2000), text("What shape is it?")], max_tokens=4)
    after = client.post(CHAT, json=other).json()
    assert after["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert after["choices"] == client.post(CHAT, json=other).json()["choices"]


def test_a_limit_above_the_model_s_own_is_held_already(client: TestClient) -> None:
    assert tokens_of(client, picture(PHOTO, max_pixels=200_000)) == by_flag()
    assert tokens_of(client, picture(PHOTO, max_pixels=1_003_520.0)) == by_flag()


@pytest.mark.parametrize(
    ("part", "more", "says"),
    [
        ({"max_pixels": 0}, {}, "max_pixels"),
        ({"max_pixels": "200000"}, {}, "max_pixels"),
        ({"maximum_pixels": 1}, {}, "no field"),
        ({}, {"mm_processor_kwargs": {"longest_edge": 5}}, "mm_processor_kwargs.longest_edge"),
        ({}, {"mm_processor_kwargs": {"max_pixels": -1}}, "mm_processor_kwargs.max_pixels"),
        ({"max_pixels": 10}, {"mm_processor_kwargs": {"min_pixels": 20}}, "must not be above"),
        ({"min_pixels": 2 * MOST}, {}, f"{MOST} pixels at most"),
    ],
    ids=str,
)
def test_a_limit_that_cannot_be_held_is_refused(
    client: TestClient, part: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    for stream in (False, True):
        body = asks([picture(PHOTO, **part), text("?")], max_tokens=1, stream=stream, **more)
        assert says in error_of(client.post(CHAT, json=body), 400)["message"]


def test_the_python_api_takes_the_same_limits(runtime: Runtime) -> None:
    part = {"type": "image", "image": PHOTO, "max_pixels": 2000}
    answer = runtime.chat([{"role": "user", "content": [part, text("?")]}], max_new_tokens=1)
    assert answer.prompt_tokens == by_flag(max_pixels=2000)
