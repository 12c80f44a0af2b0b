"""The tower is found by structure in every family, asked without being run, and replayed bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import families
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from mmswap.errors import PartsNotFound
from mmswap.swap.intercept import intercepted
from mmswap.vision.tower import Tower, accepted, find_tower

EVERY = (*families.FAMILIES, *families.HELD_OUT)


@contextmanager
def watched(model: nn.Module) -> Iterator[set[str]]:
    """Names of the modules with parameters of their own that run in the block."""
    ran: set[str] = set()
    hooks = [
        module.register_forward_hook(lambda *_, name=name: ran.add(name))
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()


def within(names: set[str], tower: Tower) -> set[str]:
    return {name for name in names if any((name + ".").startswith(home + ".") for home, _ in tower.modules)}


def borrowed(model: nn.Module) -> list[str]:
    places = ("forward", "get_image_features")
    return [name for name, module in model.named_modules() if any(place in vars(module) for place in places)]


@pytest.mark.parametrize("name", EVERY)
def test_call_is_found_without_running_the_tower_and_replayed_bit_for_bit(name: str) -> None:
    model = families.shared(name)
    inputs = families.inputs(name, model)
    tower = find_tower(model)
    with watched(model) as asked:
        call = tower.call_for(inputs)
    assert not within(asked, tower)
    with watched(model) as encoded:
        features = tower.run(call)
    assert within(encoded, tower) == encoded, "something that is not resident took part in encoding"
    with torch.no_grad():
        wanted = model(**inputs).logits
        for _ in range(2):  # the features are as good the second time
            with watched(model) as answered, tower.replay(features):
                given = model(**inputs).logits
            assert torch.equal(given, wanted)
    ran = answered & encoded - {tower.entry.removesuffix(".forward")}  # an intercepted module still calls its hooks
    assert not ran, "the tower ran although its features were given"
    assert borrowed(model) == []


@pytest.mark.parametrize("name", EVERY)
def test_residents_hold_no_language_model(name: str) -> None:
    model = families.shared(name)
    language = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    language |= {id(layer) for layer in model.modules() if "DecoderLayer" in type(layer).__name__}
    for _, module in find_tower(model).modules:
        assert not language & {id(part) for part in module.modules()}


@pytest.mark.parametrize("name", ["qwen2_vl", "mllama", "llava_next"])
def test_another_picture_gives_other_features(name: str) -> None:
    model = families.shared(name)
    tower = find_tower(model)
    one, other = (families.inputs(name, model, seed=seed) for seed in (0, 7))
    other = {**one, "pixel_values": other["pixel_values"]}
    features = tower.run(tower.call_for(other))
    with torch.no_grad():
        wanted = model(**other).logits
        with tower.replay(features):
            assert torch.equal(model(**other).logits, wanted)
        assert not torch.equal(model(**one).logits, wanted)


def test_features_are_given_for_one_picture_only() -> None:
    """Two prompts inside one replay: the second one's picture is encoded, not answered with the first one's."""
    model = families.shared("llava")
    tower = find_tower(model)
    one, other = (families.inputs("llava", model, seed=seed) for seed in (0, 7))
    with torch.no_grad():
        wanted = model(**other).logits
        with tower.replay(tower.run(tower.call_for(one))):
            model(**one)
            assert torch.equal(model(**other).logits, wanted)


@pytest.mark.parametrize("name", ["qwen2_vl", "mllama", "internvl"])
def test_nothing_is_left_on_the_model_when_the_forward_is_interrupted(name: str) -> None:
    model = families.shared(name)
    tower = find_tower(model)
    inputs = families.inputs(name, model)
    features = tower.run(tower.call_for(inputs))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.register_forward_pre_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            tower.call_for(inputs)
        with pytest.raises(KeyboardInterrupt), tower.replay(features):
            model(**inputs)
    finally:
        hook.remove()
    assert borrowed(model) == []
    assert tower.call_for(inputs).args or tower.call_for(inputs).kwargs


def test_a_call_may_be_moved_or_made_fake() -> None:
    model = families.shared("qwen2_5_vl")
    tower = find_tower(model)
    call = tower.call_for(families.inputs("qwen2_5_vl", model))
    doubled = call.mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    dtypes = {value.dtype for value in doubled.args if isinstance(value, torch.Tensor)}
    assert dtypes == {torch.float64, torch.int64}
    assert doubled.entry == call.entry


def test_pixels_are_cast_where_the_family_does_not() -> None:
    """Aria's tower takes its pixels as they come: float32 ones met bfloat16 weights and raised."""
    model = families.build("aria", dtype=torch.bfloat16)
    tower = find_tower(model)
    call = tower.call_for(families.inputs("aria", families.shared("aria")))
    cast = call.mapped(lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor)
    assert torch.equal(tower.run(call).pooler_output, tower.run(cast).pooler_output)


def test_an_error_that_no_cast_mends_is_passed_on() -> None:
    model = families.build("aria", dtype=torch.bfloat16)
    tower = find_tower(model)
    call = tower.call_for(families.inputs("aria", families.shared("aria")))
    wrong = call.mapped(lambda tensor: tensor[..., :3] if tensor.is_floating_point() else tensor)
    with pytest.raises(RuntimeError):
        tower.run(wrong)


def test_pictures_that_a_forward_hands_on_unnamed_are_let_through() -> None:
    class Open(nn.Module):
        def forward(self, input_ids: torch.Tensor, mask: torch.Tensor, cache: None, **kwargs: torch.Tensor) -> None: ...

    class Named(nn.Module):
        def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor, **kwargs: torch.Tensor) -> None: ...

    inputs = {"input_ids": 1, "pixel_values": 2, "num_crops": 3}
    assert accepted(Open(), inputs) == inputs
    assert accepted(Named(), inputs) == {"input_ids": 1, "pixel_values": 2}


def test_a_twin_on_meta_has_the_same_tower() -> None:
    for name in EVERY:
        model = families.shared(name)
        with torch.device("meta"):
            twin = type(model)(model.config)
        found, wanted = find_tower(twin), find_tower(model)
        assert [part for part, _ in found.modules] == [part for part, _ in wanted.modules]
        assert found.entry == wanted.entry


def test_prompt_without_a_picture_is_an_error_and_runs_no_layer() -> None:
    model = families.shared("qwen2_vl")
    with watched(model) as ran, pytest.raises(PartsNotFound, match="never asked for image features"):
        find_tower(model).call_for(families.inputs("qwen2_vl", model, picture=False))
    assert not [name for name in ran if ".layers." in name]


def test_model_without_a_tower_is_named() -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    with pytest.raises(PartsNotFound, match="LlamaForCausalLM has no vision tower"):
        find_tower(LlamaForCausalLM(config))


def test_interception_gives_back_what_stood_on_the_instance() -> None:
    module = nn.Linear(2, 2)
    module.forward = lambda x: x + 1  # type: ignore[method-assign]
    with intercepted(module, "forward", lambda x: x + 2):
        assert int(module(torch.tensor(0))) == 2
    assert int(module(torch.tensor(0))) == 1
