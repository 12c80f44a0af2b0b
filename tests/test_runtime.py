"""The carried model through the runtime: figures that add up, cards that agree, and nothing lost whatever happens."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from PIL import Image, ImageDraw

import mmswap
from mmswap.errors import ContextOverflow, DoesNotFit, ImageError, OptionError, WindowMisuse
from mmswap.runtime import Runtime, carried_model

QUESTION = "Describe the picture."


def circle(width: int = 300, height: int = 200, colour: str = "red") -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    size = min(width, height) // 3
    ImageDraw.Draw(image).ellipse((size, size, 2 * size, 2 * size), fill=colour)
    return image


@pytest.fixture(scope="module")
def host() -> Runtime:
    return mmswap.load(card="cpu")


@pytest.fixture(scope="module")
def roomy() -> Runtime:
    return mmswap.load(card="sim:1GiB")


def small_card(roomy: Runtime, share: float = 0.5) -> str:
    """A card that holds the model and only a share of what the encoder needs beside it."""
    roomy.encoder.cache.clear()
    need = roomy.chat(QUESTION, [circle()], max_new_tokens=1).window.need
    assert need > 0
    weights = sum(tensor.numel() * tensor.element_size() for tensor in roomy.model.parameters())
    return f"sim:{weights + int(need * share)}"


def test_a_small_card_evicts_the_fewest_units_and_says_the_same(host: Runtime, roomy: Runtime) -> None:
    expected = host.chat(QUESTION, [circle()], max_new_tokens=24)
    small = mmswap.load(card=small_card(roomy))
    before = fingerprint(small.model)
    answer = small.chat(QUESTION, [circle()], max_new_tokens=24)
    window = answer.window
    assert answer.text == expected.text
    assert window.opened
    assert window.spilled_bytes == 0
    assert window.restored_bytes == window.evicted_bytes
    layer = window.evicted_bytes // len(window.evicted)
    assert window.evicted_bytes - layer < window.deficit * 1.3  # one unit less would not have covered it
    assert window.evicted[0].endswith("layers.7")
    assert fingerprint(small.model) == before


def test_a_roomy_card_evicts_nothing_and_makes_no_mirror(host: Runtime, roomy: Runtime) -> None:
    answer = roomy.chat(QUESTION, [circle(90, 150)], max_new_tokens=8)
    assert not answer.window.opened
    assert answer.window.evicted == ()
    assert roomy.encoder.pool is not None
    assert roomy.encoder.pool.mirrors.nbytes == 0
    assert answer.text == host.chat(QUESTION, [circle(90, 150)], max_new_tokens=8).text


def test_the_prediction_is_above_what_was_measured(roomy: Runtime) -> None:
    for size in ((40, 40), (300, 200), (97, 211), (640, 480)):
        (image,) = roomy.chat(QUESTION, [circle(*size)], max_new_tokens=1).images
        assert (image.width, image.height) == size
        assert image.peak_measured <= image.peak_predicted <= image.peak_measured * 1.5
        assert image.tokens * 4 == image.patches


def test_smaller_pictures_are_predicted_smaller() -> None:
    limited = mmswap.load(card="sim:1GiB", image_max_pixels=6400)
    free = mmswap.load(card="sim:1GiB")
    big = circle(640, 480)
    (few,), (many,) = (r.chat(QUESTION, [big], max_new_tokens=1).images for r in (limited, free))
    assert few.patches < many.patches
    assert few.peak_predicted < many.peak_predicted


def test_the_second_question_about_a_picture_encodes_nothing(host: Runtime) -> None:
    image = circle(111, 77, "blue")
    first = host.chat("What colour is it?", [image], max_new_tokens=4)
    second = host.chat("What shape is it?", [image], max_new_tokens=4)
    assert first.images[0].encode_ms > 0
    assert second.images[0].encode_ms == 0
    assert "cache" in second.window.reason
    other = host.chat("What shape is it?", [circle(111, 77, "green")], max_new_tokens=4)
    assert other.images[0].encode_ms > 0


def test_a_prompt_over_the_context_is_refused_before_the_tower_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = mmswap.load(card="cpu", context=32)
    monkeypatch.setattr(runtime.encoder, "begin", lambda *_: pytest.fail("the tower was asked"))
    with pytest.raises(ContextOverflow, match=r"\d+ tokens and the context holds 32") as caught:
        runtime.chat(QUESTION, [circle()])
    assert caught.value.context == 32
    assert caught.value.prompt_tokens >= 32


def test_an_answer_that_reaches_the_context_ends_with_length() -> None:
    runtime = mmswap.load(card="cpu", context=64)
    runtime.end_ids = frozenset()
    answer = runtime.chat(QUESTION, [circle()], max_new_tokens=500)
    assert answer.finish_reason == "length"
    assert answer.prompt_tokens + answer.completion_tokens == 64


def test_a_card_that_cannot_hold_the_model_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFit) as caught:
        mmswap.load(card="sim:2MiB")
    assert caught.value.need > caught.value.free == 2 << 20


def test_a_full_card_ends_the_answer_and_never_spills(roomy: Runtime) -> None:
    runtime = mmswap.load(card=small_card(roomy))
    runtime.end_ids = frozenset()
    answer = runtime.chat(QUESTION, [circle()], max_new_tokens=2000)
    assert answer.finish_reason == "length"
    assert answer.completion_tokens < 2000
    assert any("no room for a longer KV cache" in decision for decision in answer.decisions)
    assert answer.window.spilled_bytes == 0
    assert set(runtime.card.claims) >= {"vision tower", "embeddings and norms"}  # type: ignore[attr-defined]
    assert "KV cache" not in runtime.card.claims  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stream_closed_early_restores_everything(roomy: Runtime, after: int) -> None:
    small = mmswap.load(card=small_card(roomy))
    before, claims = fingerprint(small.model), dict(small.card.claims)  # type: ignore[attr-defined]
    stream = small.stream([{"role": "user", "content": [{"type": "image", "image": circle()}]}])
    for _ in range(after):
        next(stream, None)
    stream.close()
    assert fingerprint(small.model) == before
    assert small.card.claims == claims  # type: ignore[attr-defined]
    assert small.chat(QUESTION, [circle()], max_new_tokens=2).completion_tokens > 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_fault_inside_the_tower_restores_everything_and_is_raised(roomy: Runtime, error: type) -> None:
    small = mmswap.load(card=small_card(roomy))
    before = fingerprint(small.model)
    block = small.encoder.tower.modules[0][1].blocks[2]  # type: ignore[attr-defined]
    hook = block.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error("in the tower")))
    with pytest.raises(error, match="in the tower"):
        small.chat(QUESTION, [circle()])
    hook.remove()
    assert fingerprint(small.model) == before
    answer = small.chat(QUESTION, [circle()], max_new_tokens=4)
    assert answer.text == roomy.chat(QUESTION, [circle()], max_new_tokens=4).text


def test_a_second_answer_in_the_same_thread_is_refused_not_deadlocked(host: Runtime) -> None:
    host.end_ids, ends = frozenset(), host.end_ids
    stream = host.stream([{"role": "user", "content": "Hello"}])
    next(stream)
    with pytest.raises(WindowMisuse, match="under way"):
        host.chat("Hello")
    stream.close()
    host.end_ids = ends
    assert host.chat("Hello", max_new_tokens=2).completion_tokens


def test_answers_from_several_threads_wait_for_each_other(roomy: Runtime) -> None:
    expected = {c: roomy.chat(QUESTION, [circle(colour=c)], max_new_tokens=8).text for c in ("red", "blue", "green")}
    small = mmswap.load(card=small_card(roomy))
    got: dict[str, str] = {}

    def ask(colour: str) -> None:
        got[colour] = small.chat(QUESTION, [circle(colour=colour)], max_new_tokens=8).text

    threads = [threading.Thread(target=ask, args=(colour,)) for colour in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_an_answer_is_there_only_at_the_end(host: Runtime) -> None:
    stream = host.stream([{"role": "user", "content": "Hello"}])
    with pytest.raises(WindowMisuse):
        _ = stream.answer
    text = "".join(stream)
    assert stream.answer.text == text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda r: r.chat("hi", [b"nothing"]), ImageError),
        (lambda r: r.chat([{"role": "user", "content": "hi"}], [circle()]), OptionError),
        (lambda r: r.chat("hi", temperature=-1), OptionError),
        (lambda r: mmswap.load(card="cpu", context=10**9), OptionError),
        (lambda r: mmswap.load(card="gpu"), OptionError),
        (lambda r: mmswap.load(config=mmswap.RunConfig(), card="cpu"), OptionError),
    ],
)
def test_mistakes_get_one_sentence(host: Runtime, call: Any, error: type) -> None:
    with pytest.raises(error, match=r"[.)]$"):
        call(host)


def test_the_cpu_flag_bypasses_swapping_and_says_so() -> None:
    runtime = mmswap.load(card="sim:1GiB", no_mmproj_offload=True)
    answer = runtime.chat(QUESTION, [circle()], max_new_tokens=4)
    assert runtime.encoder.pool is None
    assert "--no-mmproj-offload" in answer.window.reason
    assert "vision tower" not in runtime.card.claims  # type: ignore[attr-defined]


def test_a_fixed_number_of_layers_is_obeyed(host: Runtime) -> None:
    runtime = mmswap.load(card="sim:1GiB", mmproj_swap_layers=3)
    answer = runtime.chat(QUESTION, [circle()], max_new_tokens=8)
    assert len(answer.window.evicted) == 3
    assert answer.text == host.chat(QUESTION, [circle()], max_new_tokens=8).text


def test_sampling_is_the_requests_own(host: Runtime) -> None:
    state = torch.random.get_rng_state()
    options = {"temperature": 1.5, "max_new_tokens": 12}
    first = host.chat("Hello", seed=42, **options)
    host.chat("Hello", seed=7, **options)
    assert host.chat("Hello", seed=42, **options).text == first.text
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_carried_model_loads_as_any_folder_does() -> None:
    assert mmswap.load(carried_model(), card="cpu").chat("Hello", max_new_tokens=2).completion_tokens > 0


def test_an_error_in_on_text_ends_the_answer_and_the_next_one_is_answered(roomy: Runtime) -> None:
    """Who keeps the error keeps its frames, and with them the unread stream: it must not keep its turn."""

    def refuse(piece: str) -> None:
        raise ZeroDivisionError(piece)

    with pytest.raises(ZeroDivisionError) as caught:
        roomy.chat(QUESTION, [circle()], max_new_tokens=8, on_text=refuse)
    assert caught.traceback
    assert not any("KV cache" in label for label in roomy.card.claims)  # type: ignore[attr-defined]
    assert roomy.chat(QUESTION, [circle()], max_new_tokens=2).completion_tokens


@pytest.mark.parametrize("step", [0, 2])  # of the prompt, of the answer
def test_a_card_that_refuses_an_allocation_ends_one_prompt_and_not_the_process(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = mmswap.load(card="sim:1GiB")
    before, calls = fingerprint(runtime.model), []
    embeddings = runtime.model.get_input_embeddings()
    forward = embeddings.forward

    def refuse(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == step + 1:
            raise torch.OutOfMemoryError("HIP out of memory")
        return forward(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "forward", refuse)
        with pytest.raises(DoesNotFit, match="the card refused it"):
            runtime.chat(QUESTION, [circle()], max_new_tokens=8)
    assert fingerprint(runtime.model) == before
    assert runtime.chat(QUESTION, [circle()], max_new_tokens=2).completion_tokens
