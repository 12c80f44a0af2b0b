"""A follow-up reads only what is new, and answers as if it had read all; another picture never serves (case C8)."""

from __future__ import annotations

import functools
from typing import Any

import families
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from mmswap.config import SamplingConfig
from mmswap.llm.decode import Generation, generate
from mmswap.llm.decoding import PLAIN, Decoding
from mmswap.llm.fast import open_lean
from mmswap.llm.kv.caching import decide
from mmswap.llm.kv.prefix import Kept, Key, chat_key, picture_hash, within_pictures
from mmswap.vision.tower import find_tower

PIC = 390
REUSING = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "gemma4", "llava", "internvl", "pixtral", "glm4v"]
NEW = 8


def key_of(ids: list[int], *names: str) -> Key:
    count = ids.count(PIC)
    made = chat_key(ids, PIC, [(name, count // len(names)) for name in names])
    assert made is not None
    return made


def follow(inputs: dict[str, Tensor], answer: list[int], more: list[int]) -> dict[str, Tensor]:
    """The next turn: the prompt, its answer, and a question in words."""
    tail = torch.tensor([[*answer, *more]])
    given = {**inputs, "input_ids": torch.cat([inputs["input_ids"], tail], 1)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in inputs:
            given[name] = torch.cat([inputs[name], torch.zeros_like(tail)], 1)
    return given


def run(
    model: Any, inputs: dict[str, Tensor], key: Key | None, kept: Kept | None = None, decoding: Decoding = PLAIN
) -> Generation:
    """An answer that is read to its end; `ids` are its tokens, `logits` those behind the prompt."""
    tower = find_tower(model)
    pictured = any("pixel" in name for name in inputs)
    replay = functools.partial(tower.replay, tower.run(tower.call_for(inputs))) if pictured else None
    running = generate(
        model,
        inputs,
        sampling=SamplingConfig(max_new_tokens=NEW),
        end_ids=frozenset(),
        context=512,
        replay=None if kept is not None else replay,
        caching=decide(model, "auto"),
        decoding=decoding,
        key=key,
        kept=kept,
    )
    seen: list[Tensor] = []
    hook = model.register_forward_hook(lambda module, args, out: seen.append(out.logits[0, -1].clone()))
    running.ids = [token.id for token in running]  # type: ignore[attr-defined]
    hook.remove()
    running.logits = seen[0]  # type: ignore[attr-defined]
    return running


@pytest.mark.parametrize("name", REUSING)
def test_a_follow_up_reads_what_is_new_and_answers_as_a_fresh_run(name: str) -> None:
    model = families.shared(name)
    first = families.inputs(name, model, size=2, text=14, seed=3)
    ids = first["input_ids"][0].tolist()
    one = run(model, first, key_of(ids, "A"))
    answer = one.ids  # type: ignore[attr-defined]
    second = follow(first, answer, [17, 23, 42, 99])
    whole = second["input_ids"][0].tolist()
    fresh = run(model, second, None)
    again = run(model, second, key_of(whole, "A"), one.kept)
    assert one.kept is not None
    assert again.statistics.reused_tokens == len(ids) + NEW - 1
    assert sum(again.statistics.chunking.sizes) == len(whole) - again.statistics.reused_tokens
    assert again.ids == fresh.ids  # type: ignore[attr-defined]
    assert torch.allclose(again.logits, fresh.logits, atol=1e-4)  # type: ignore[attr-defined]
    third = follow(second, again.ids, [7, 8])  # type: ignore[attr-defined]
    last = run(model, third, key_of(third["input_ids"][0].tolist(), "A"), again.kept)
    assert last.statistics.reused_tokens > again.statistics.reused_tokens
    assert last.ids == run(model, third, None).ids  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3"])
def test_a_lean_step_goes_on_at_the_right_position(name: str) -> None:
    """Positions that a picture shifted, and a window, in answers decoded part by part."""
    model = families.build(name)
    decoding = Decoding(step=open_lean(model))
    first = families.inputs(name, model, size=3, text=14, seed=3)
    one = run(model, first, key_of(first["input_ids"][0].tolist(), "A"), decoding=decoding)
    second = follow(first, one.ids, [17, 23, 42, 99])  # type: ignore[attr-defined]
    key = key_of(second["input_ids"][0].tolist(), "A")
    again = run(model, second, key, one.kept, decoding)
    assert again.statistics.reused_tokens > 0
    assert again.ids == run(model, second, None).ids  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["qwen2_vl", "llava"])
def test_another_answer_is_rewound(name: str) -> None:
    """The chat went on otherwise than it was answered: a text was edited."""
    model = families.shared(name)
    first = families.inputs(name, model, size=1, text=14)
    ids = first["input_ids"][0].tolist()
    one = run(model, first, key_of(ids, "A"))
    second = follow(first, [one.ids[0], 55, 66], [17])  # type: ignore[attr-defined]
    again = run(model, second, key_of(second["input_ids"][0].tolist(), "A"), one.kept)
    assert again.statistics.reused_tokens == len(ids) + 1
    assert again.ids == run(model, second, None).ids  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["qwen2_vl", "llava", "gemma3"])
def test_another_picture_with_the_same_words_serves_nothing_behind_it(name: str) -> None:
    model = families.shared(name)
    first = families.inputs(name, model, size=2, text=14)
    ids = first["input_ids"][0].tolist()
    one = run(model, first, key_of(ids, "A"))
    assert one.kept is not None
    assert one.kept.serves(key_of(ids, "B")) == 0
    other = families.inputs(name, model, size=2, text=14, seed=0)
    other = {**other, **families.image_inputs(name, model, size=2, seed=9)}
    again = run(model, other, key_of(ids, "B"), None)
    assert again.statistics.reused_tokens == 0
    assert again.ids == run(model, other, None).ids  # type: ignore[attr-defined]


def test_a_recurrent_state_serves_whole_or_not_at_all() -> None:
    model = families.shared("qwen3_5")
    first = families.inputs("qwen3_5", model, size=2, text=14)
    ids = first["input_ids"][0].tolist()
    one = run(model, first, key_of(ids, "A"))
    assert one.kept is not None
    edited = follow(first, [one.ids[0], 55], [17])  # type: ignore[attr-defined]
    assert one.kept.serves(key_of(edited["input_ids"][0].tolist(), "A")) == 0
    second = follow(first, one.ids, [17, 23])  # type: ignore[attr-defined]
    again = run(model, second, key_of(second["input_ids"][0].tolist(), "A"), one.kept)
    assert again.statistics.reused_tokens == len(ids) + NEW - 1
    assert again.ids == run(model, second, None).ids  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["paligemma", "mllama", "florence2"])
def test_models_of_another_make_keep_nothing(name: str) -> None:
    """Words that see the words behind them, keys of a picture beside the text's, an encoder."""
    model = families.shared(name)
    inputs = families.inputs(name, model)
    ids = inputs["input_ids"][0].tolist()
    assert run(model, inputs, key_of(ids, "A")).kept is None


def test_a_window_that_wrapped_serves_only_what_goes_on() -> None:
    model = families.shared("gemma3")
    first = families.inputs("gemma3", model, size=2, text=60)
    ids = first["input_ids"][0].tolist()
    one = run(model, first, key_of(ids, "A"))
    assert one.kept is not None
    assert one.kept.serves(key_of([*ids, *one.ids, 5], "A")) == len(ids) + NEW - 1  # type: ignore[attr-defined]
    assert one.kept.serves(key_of([*ids, 301, 302, 303], "A")) == 0


def test_a_failed_or_unkeyed_answer_leaves_nothing_and_a_closed_one_does() -> None:
    model = families.shared("llava")
    inputs = families.inputs("llava", model)
    ids = inputs["input_ids"][0].tolist()
    assert run(model, inputs, None).kept is None
    tower = find_tower(model)
    features = tower.run(tower.call_for(inputs))
    running = generate(
        model,
        inputs,
        sampling=SamplingConfig(max_new_tokens=NEW),
        end_ids=frozenset(),
        context=512,
        replay=lambda: tower.replay(features),
        caching=decide(model, "auto"),
        key=key_of(ids, "A"),
    )
    fed = [next(running).id for _ in range(3)]
    running.close()
    assert running.kept is not None
    assert running.kept.key.units[-2:] == tuple(fed[:2])


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_what_two_texts_share_is_their_longest_common_beginning(one: list[int], other: list[int]) -> None:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    assert Key(tuple(one)).shared(Key(tuple(other))) == count


def test_a_picture_is_never_cut() -> None:
    whole = key_of([1, PIC, PIC, PIC, 2], "A")
    short = chat_key([1, PIC, PIC, 9], PIC, [("A", 2)])
    assert short is not None
    assert whole.shared(short) == 1
    parted = chat_key([1, PIC, 77, PIC, 2], PIC, [("A", 2)])  # rows with a mark between them
    assert parted is not None
    assert parted.pictures == ((1, 4),)
    assert parted.shared(key_of([1, PIC, 78, PIC, 2], "A")) == 1


def test_placeholders_that_do_not_add_up_give_no_key() -> None:
    assert chat_key([1, PIC, 2], PIC, [("A", 2)]) is None
    assert chat_key([1, 2], None, [("A", 1)]) is None
    assert chat_key([1, PIC, PIC, 2], PIC, [("A", 0), ("B", 2)]) is None
    assert chat_key([1, PIC, 2], PIC, []) == Key((1, PIC, 2))


def test_a_hash_is_of_every_byte_and_of_the_size() -> None:
    image = Image.new("RGB", (40, 30), "red")
    other = image.copy()
    other.putpixel((39, 29), (255, 0, 1))
    turned = Image.new("RGB", (30, 40), "red")
    assert len({picture_hash(one) for one in (image, other, turned, image.convert("L"))}) == 4
    assert picture_hash(image) == picture_hash(image.copy())


def test_words_that_look_ahead_are_told_from_pictures_that_do() -> None:
    assert within_pictures(None, ())
    assert within_pictures(torch.tensor([0, 3, 3, 3, 4]), [(1, 4)])
    assert not within_pictures(torch.tensor([0, 4, 4, 4, 4]), [(1, 4)])
    assert not within_pictures(torch.tensor([4, 4, 4, 4, 4]), [(1, 4)])
