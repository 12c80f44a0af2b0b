"""The decode loop against unpatched `generate()`: equal ids in every family, in one pass, in chunks and in turns."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from typing import Any

import families
import pytest
import torch
from decoding import END, NEW, ours, start, unpatched
from torch import Tensor, nn

from mmswap.config import SamplingConfig
from mmswap.errors import ContextOverflow, ModelError, NonFiniteLogits
from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import LeanStep, Refused, open_lean
from mmswap.llm.parts import find_parts

PICTURE_ONLY = ("blip_2",)  # their own generate() refuses a prompt without one


@functools.cache
def lean_of(name: str) -> LeanStep | None:
    """The lean step of the family's shared model; None if it keeps its own forward."""
    try:
        return open_lean(families.shared(name))
    except Refused:
        return None


@pytest.mark.parametrize("name", families.FAMILIES)
def test_greedy_ids_are_those_of_unpatched_generate(name: str) -> None:
    model = families.shared(name)
    pictured = families.inputs(name, model, size=3, text=20)
    text_only = families.inputs(name, model, text=40, picture=False)
    for inputs in (pictured, text_only):
        wanted = unpatched(model, inputs)
        assert len(wanted) == NEW
        assert ours(model, inputs) == wanted
        assert ours(model, inputs, chunk=16) == wanted
        assert ours(model, inputs, chunk=16, decoding=Decoding(lean_of(name))) == wanted


@pytest.mark.parametrize("name", families.HELD_OUT)
def test_greedy_ids_in_families_that_were_held_out(name: str) -> None:
    model = families.shared(name)
    pictured = families.inputs(name, model, size=2)
    wanted = unpatched(model, pictured)
    assert ours(model, pictured, chunk=16) == wanted
    assert ours(model, pictured, decoding=Decoding(lean_of(name))) == wanted
    if name in PICTURE_ONLY:
        with pytest.raises(ModelError, match="does not take this prompt"):
            ours(model, families.inputs(name, model, picture=False))
        return
    text_only = families.inputs(name, model, text=20, picture=False)
    assert ours(model, text_only, chunk=16) == unpatched(model, text_only)


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "gemma4", "mllama", "qwen3_5"])
def test_chunks_with_eager_attention(name: str) -> None:
    model = families.build(name, attention="eager")
    inputs = families.inputs(name, model, size=3, text=30)
    wanted = unpatched(model, inputs)
    assert ours(model, inputs, chunk=16) == wanted
    assert ours(model, inputs) == wanted


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "mllama", "qwen3_5"])
def test_bf16_in_one_pass_equals_generate(name: str) -> None:
    model = families.build(name, dtype=torch.bfloat16)
    inputs = families.inputs(name, model)
    assert ours(model, inputs) == unpatched(model, inputs)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "qwen3_5", "gemma3", "gemma4", "mllama", "glm4v"])
def test_requests_take_turns_on_one_model(name: str) -> None:
    """Position shifts that one picture caused must not reach another request (they are kept on the model)."""
    model = families.shared(name)
    prompts = [families.inputs(name, model, size=size, text=10 + size, seed=size) for size in (1, 2, 3)]
    prompts.append(families.inputs(name, model, text=25, picture=False))
    wanted = [unpatched(model, prompt) for prompt in prompts]
    leans = [lean_of(name), None, lean_of(name), lean_of(name)]
    running = [start(model, prompt, chunk=16, decoding=Decoding(lean)) for prompt, lean in zip(prompts, leans)]
    answers: list[list[int]] = [[] for _ in prompts]
    for step in itertools.zip_longest(*running):
        for answer, token in zip(answers, step):
            answer.extend([token.id] if token is not None else [])
    assert answers == wanted


@pytest.mark.parametrize("name", ["qwen2_vl", "mllama"])
def test_a_longer_chat_is_computed_afresh(name: str) -> None:
    model = families.shared(name)
    first = families.inputs(name, model, seed=3)
    answer = ours(model, first)
    more = torch.tensor([[*answer, 17, 23, 42]])
    second = {**first, "input_ids": torch.cat([first["input_ids"], more], 1)}
    second["attention_mask"] = torch.ones_like(second["input_ids"])
    for key in ("mm_token_type_ids", "cross_attention_mask"):
        if key in first:
            tail = first[key][:, -1:].expand(-1, more.shape[1], *first[key].shape[2:])
            second[key] = torch.cat([first[key], tail], 1)
    assert ours(model, second) == unpatched(model, second)


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "paligemma"])
def test_tokens_that_see_each_other_stay_in_one_chunk(name: str) -> None:
    model = families.shared(name)
    inputs = families.inputs(name, model, size=3, text=30)
    running = start(model, inputs, chunk=5)
    next(running)
    ends = list(itertools.accumulate(running.statistics.chunking.sizes))
    block = (inputs["input_ids"][0] == families.IMAGE).nonzero().flatten().tolist()
    assert ends[-1] == inputs["input_ids"].shape[1]
    assert not [end for end in ends if block[0] < end <= block[-1]]
    assert running.statistics.chunking.reason.startswith(("one pass", f"{len(ends)} chunks"))
    running.close()


def test_end_ids_stop_and_are_not_handed_out() -> None:
    model = families.shared("qwen2_5_vl")
    inputs = families.inputs("qwen2_5_vl", model)
    answer = unpatched(model, inputs)
    running = start(model, inputs, end_ids=frozenset({answer[4], END}))
    assert [token.id for token in running] == answer[: answer.index(answer[4])]
    assert running.finish_reason == "stop"


def test_length_and_context_end_the_answer() -> None:
    model = families.shared("llava")
    inputs = families.inputs("llava", model)
    prompt = inputs["input_ids"].shape[1]
    running = start(model, inputs)
    assert len(list(running)) == NEW
    assert running.finish_reason == "length"
    limited = start(model, inputs, context=prompt + 3)
    assert len(list(limited)) == 3
    assert limited.finish_reason == "length"
    with pytest.raises(ContextOverflow) as refused:
        start(model, inputs, context=prompt)
    assert (refused.value.prompt_tokens, refused.value.context) == (prompt, prompt)


def test_statistics_tell_tokens_and_seconds() -> None:
    model = families.shared("llava")
    inputs = families.inputs("llava", model)
    running = start(model, inputs, chunk=16)
    tokens = list(running)
    told = running.statistics
    assert (told.prefill_tokens, told.decode_tokens) == (inputs["input_ids"].shape[1], len(tokens))
    assert told.prefill_seconds > 0
    assert told.decode_seconds > 0
    assert told.chunking.sizes == (16, 16, 14)
    assert told.chunking.reason == "3 chunks of at most 16 tokens"
    assert told.prefill_rate == told.prefill_tokens / told.prefill_seconds
    assert told.decode_rate == (NEW - 1) / told.decode_seconds


class _Poison:
    """A head that computes something that is no number, once switched on."""

    def __init__(self, head: nn.Module, value: float, places: slice = slice(None)) -> None:
        self.after = 0
        self._seen, self._value, self._places = 0, value, places
        self.hook = head.register_forward_hook(self)

    def __call__(self, module: nn.Module, args: Any, logits: Tensor) -> Tensor:
        self._seen += 1
        if self._seen > self.after:
            logits = logits.clone()
            logits[..., self._places] = self._value
        return logits


@pytest.mark.parametrize(("value", "places"), [(float("nan"), slice(7, 8)), (float("-inf"), slice(None))])
@pytest.mark.parametrize("after", [0, 3])
def test_no_number_is_an_error_for_that_request_alone(value: float, places: slice, after: int) -> None:
    model = families.build("llava")
    inputs = families.inputs("llava", model)
    wanted = unpatched(model, inputs)
    poison = _Poison(model.get_output_embeddings(), value, places)
    poison.after = after
    running = start(model, inputs)
    assert [next(running).id for _ in range(after)] == wanted[:after]
    with pytest.raises(NonFiniteLogits):
        next(running)
    poison.hook.remove()
    assert list(running) == []
    assert ours(model, inputs) == wanted


def test_should_stop_and_close_end_early_and_drop_the_cache() -> None:
    model = families.shared("qwen2_vl")
    inputs = families.inputs("qwen2_vl", model)
    given: list[int] = []
    stopped = start(model, inputs, should_stop=lambda: len(given) >= 3)
    for token in stopped:
        given.append(token.id)
    assert len(given) == 3
    assert stopped.finish_reason == "cancelled"
    closed = start(model, inputs)
    next(closed)
    closed.close()
    closed.close()
    assert list(closed) == []
    assert closed.finish_reason == "cancelled"


@pytest.mark.parametrize("chunk", [16, 2048])
def test_a_prompt_is_left_between_two_layers(chunk: int) -> None:
    """A client that left was kept waiting for until its whole prompt had been read."""
    model = families.shared("qwen2_vl")
    inputs = families.inputs("qwen2_vl", model, text=40)
    asked = itertools.count()
    stopped = start(model, inputs, chunk, should_stop=lambda: next(asked) >= 2)
    assert list(stopped) == []
    assert stopped.finish_reason == "cancelled"
    assert next(asked) == 3
    assert stopped.kept is None
    assert not any(layer._forward_pre_hooks for _, layer in find_parts(model).layers)
    assert ours(model, inputs, chunk) == unpatched(model, inputs)


@pytest.mark.parametrize("how", ["close", "exhaust", "fail"])
def test_cache_is_freed_with_the_request(how: str) -> None:
    model = families.build("llava")
    inputs = families.inputs("llava", model)
    caches: list[weakref.ref[Any]] = []
    hook = model.model.language_model.register_forward_hook(
        lambda module, args, kwargs, out: caches.append(weakref.ref(out.cache)), with_kwargs=True
    )
    running = start(model, inputs)
    next(running)
    assert caches[0]() is not None
    if how == "fail":
        _Poison(model.get_output_embeddings(), float("nan"))
        with pytest.raises(NonFiniteLogits):
            next(running)
    else:
        running.close() if how == "close" else list(running)
    hook.remove()
    gc.collect()
    assert [cache() for cache in caches] == [None] * len(caches)


def test_nothing_stays_on_the_model_after_a_request() -> None:
    model = families.build("qwen2_vl")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert ours(model, families.inputs("qwen2_vl", model), chunk=16)
    for name, module in model.named_modules():
        now = vars(module)
        assert now.keys() == before[name].keys(), name
        assert all(now[key] is value for key, value in before[name].items() if value is None or key == "forward"), name


def test_seeds_belong_to_requests() -> None:
    model = families.shared("smolvlm")
    inputs = families.inputs("smolvlm", model)
    warm = {"temperature": 1.0, "max_new_tokens": NEW}
    answers = []
    for noise in range(5):
        other = start(model, inputs, sampling=SamplingConfig(seed=noise, **warm))
        mine = start(model, inputs, sampling=SamplingConfig(seed=42, **warm))
        torch.manual_seed(noise)
        answers.append([token.id for token, _ in zip(mine, other)])
    assert all(answer == answers[0] for answer in answers)
    assert ours(model, inputs, sampling=SamplingConfig(seed=43, **warm)) != answers[0]
