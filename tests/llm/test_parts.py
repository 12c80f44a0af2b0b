"""Decoder, layers, embeddings, head and ties are found in every family, on real and on meta models."""

from __future__ import annotations

import families
import pytest
import torch
from torch import nn

from mmswap.errors import PartsNotFound
from mmswap.llm.parts import find_parts

EVERY = (*families.FAMILIES, *families.HELD_OUT)


@pytest.mark.parametrize("name", EVERY)
def test_parts_are_those_that_a_forward_uses(name: str) -> None:
    model = families.shared(name)
    parts = find_parts(model)
    ran: list[nn.Module] = []
    watched = [parts.embeddings, *(layer for _, layer in parts.layers), parts.norm, parts.head]
    hooks = [part.register_forward_hook(lambda module, *_: ran.append(module)) for part in watched if part is not None]
    with torch.no_grad():
        model.generate(**families.inputs(name, model), max_new_tokens=1, min_new_tokens=1, do_sample=False)
    for hook in hooks:
        hook.remove()
    order = [module for module in ran if module is not parts.embeddings]
    assert parts.embeddings in ran
    assert order == [*(layer for _, layer in parts.layers), *([parts.norm] if parts.norm else []), parts.head]
    assert len(parts.layers) == 4


@pytest.mark.parametrize("name", EVERY)
def test_names_lead_to_the_parts_and_ties_are_seen(name: str) -> None:
    model = families.shared(name)
    parts = find_parts(model)
    for path, part in (*parts.layers, (parts.head_name, parts.head), (parts.embeddings_name, parts.embeddings)):
        assert model.get_submodule(path) is part
    assert model.get_submodule(parts.decoder_name) is parts.decoder
    assert parts.tied == (parts.head.weight.data_ptr() == parts.embeddings.weight.data_ptr())
    with torch.device("meta"):
        twin = find_parts(type(model)(model.config).eval())
    assert (twin.decoder_name, twin.head_name, twin.tied) == (parts.decoder_name, parts.head_name, parts.tied)
    assert [path for path, _ in twin.layers] == [path for path, _ in parts.layers]


def test_both_kinds_of_ties_are_among_the_families() -> None:
    assert {find_parts(families.shared(name)).tied for name in ("gemma3", "llava")} == {True, False}


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


class _Headless(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(_Block() for _ in range(layers))

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, inputs_embeds: torch.Tensor) -> torch.Tensor:
        return inputs_embeds


class _WithHead(_Headless):
    def __init__(self, layers: int = 2) -> None:
        super().__init__(layers)
        self.out = nn.Linear(4, 8)


def test_missing_parts_are_named() -> None:
    with pytest.raises(PartsNotFound, match="no token embedding"):
        find_parts(nn.Linear(2, 2))
    with pytest.raises(PartsNotFound, match="no output head"):
        find_parts(_Headless())
    with pytest.raises(PartsNotFound, match="no decoder layers"):
        find_parts(_WithHead(layers=0))


def test_head_is_found_by_its_shape_when_the_model_does_not_name_it() -> None:
    model = _WithHead()
    assert find_parts(model).head is model.out
