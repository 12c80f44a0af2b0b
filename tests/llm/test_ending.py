"""End ids are the union of all that a checkpoint says (case C6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GenerationConfig, LlavaConfig

from mmswap.llm.ending import end_ids

CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, int | None, set[int]]] = {
    "list_in_generation_config": ({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, 2, {2, 7}),
    "generation_config_lacks_turn_end": ({"eos_token_id": 2}, {"eos_token_id": 2}, 7, {2, 7}),
    "only_config": ({"eos_token_id": [2, 7]}, None, None, {2, 7}),
    "only_text_config": ({"text_config": {"eos_token_id": 7}}, None, 2, {2, 7}),
    "null_eos": ({"eos_token_id": None}, {"eos_token_id": None}, 2, {2}),
    "nothing": ({}, None, None, set()),
    "no_number": ({"eos_token_id": True}, {"eos_token_id": -1}, None, set()),
}


@pytest.mark.parametrize("name", CASES)
def test_union_of_all_sources(name: str) -> None:
    config, generation, tokenizer, wanted = CASES[name]
    nested = {key: SimpleNamespace(**value) if isinstance(value, dict) else value for key, value in config.items()}
    named = SimpleNamespace(eos_token_id=tokenizer)
    given = SimpleNamespace(**generation) if generation is not None else None
    assert end_ids(SimpleNamespace(**nested), given, named) == wanted


def test_dicts_as_they_stand_in_the_files() -> None:
    assert end_ids({"text_config": {"eos_token_id": 7}}, {"eos_token_id": [2]}) == {2, 7}


def test_real_config_classes() -> None:
    config = LlavaConfig(text_config={"model_type": "llama", "eos_token_id": [5, 6]})
    assert end_ids(config, GenerationConfig(eos_token_id=9)) == {5, 6, 9}
