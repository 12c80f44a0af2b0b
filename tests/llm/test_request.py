"""What a model keeps on itself belongs to one request, and comes back when it is that request's turn."""

from __future__ import annotations

import families
import pytest
import torch
from torch import nn

from mmswap.llm.request import RequestState, first_inputs, prepare


class _Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.inner.shift = None
        self.count = 0

    def forward(self, shift: int) -> tuple[int | None, int]:
        before = (self.inner.shift, self.count)
        self.inner.shift, self.count = shift, self.count + 1
        self.made_late = torch.tensor(shift)
        return before


def test_two_requests_do_not_see_each_other() -> None:
    model = _Forgetful()
    one, other = RequestState(model), RequestState(model)
    with one.watching():
        assert model(5) == (None, 0)
    assert (model.inner.shift, model.count, hasattr(model, "made_late")) == (None, 0, False)
    with other.watching():
        assert model(7) == (None, 0)
    with one.applied():
        assert model.made_late == 5
        assert model(6) == (5, 1)
    with other.applied():
        assert model(8) == (7, 1)
    with one.applied():
        assert model(0) == (6, 2)
    assert (model.inner.shift, model.count, hasattr(model, "made_late")) == (None, 0, False)


def interrupted(model: nn.Module) -> None:
    model(5)
    raise KeyboardInterrupt


def test_state_is_given_back_when_the_forward_fails() -> None:
    model = _Forgetful()
    state = RequestState(model)
    with pytest.raises(KeyboardInterrupt), state.watching():
        interrupted(model)
    assert (model.inner.shift, model.count) == (None, 0)
    with pytest.raises(KeyboardInterrupt), state.applied():
        interrupted(model)
    assert (model.inner.shift, model.count) == (None, 0)
    with state.applied():
        assert (model.inner.shift, model.count) == (5, 2)


def test_prepared_request_has_what_generate_would_use() -> None:
    model = families.shared("qwen3_5")
    inputs = families.inputs("qwen3_5", model)
    prepared = prepare(model, inputs, 4)
    given = first_inputs(prepared)
    kinds = [type(layer).__name__ for layer in prepared.kwargs["cache"].layers]
    assert len(set(kinds)) == 2, "linear and full attention keep different things"
    assert torch.equal(given["input_ids"], inputs["input_ids"])
    assert given["logits_to_keep"] == 1
    assert "pixel_values" not in given or given["pixel_values"] is inputs["pixel_values"]


def test_checkpoint_settings_that_choose_tokens_are_left_to_the_sampler() -> None:
    model = families.build("qwen2_vl")
    plain = prepare(model, families.inputs("qwen2_vl", model), 4)
    config = model.generation_config
    config.do_sample, config.temperature, config.top_k, config.num_beams = True, 0.1, 1, 3
    config.repetition_penalty, config.cache_implementation, config.max_length = 1.3, "static", 7
    chosen = prepare(model, families.inputs("qwen2_vl", model), 4)
    assert type(chosen.kwargs["cache"]) is type(plain.kwargs["cache"])
    assert chosen.ids.shape == plain.ids.shape
    assert model.generation_config.num_beams == 3


def test_token_kinds_without_a_name_in_the_model_are_dropped() -> None:
    model = families.shared("llava")
    inputs = families.inputs("llava", model)
    assert prepare(model, {**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])}, 4).ids.shape[0] == 1
