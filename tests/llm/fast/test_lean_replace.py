"""Models without a lean step: ops in place of their norms and linear layers, for a few rows, with equal answers."""

from __future__ import annotations

import copy
from typing import Any

import families
import pytest
import torch
from decoding import NEW, ours, unpatched
from torch.utils._python_dispatch import TorchDispatchMode

from mmswap.llm.fast.replace import replace
from mmswap.llm.parts import find_parts


@pytest.mark.parametrize("name", ["gemma4", "mllama", "got_ocr2", "florence2", "qwen3_vl"])
def test_greedy_ids_stay(name: str) -> None:
    model = families.build(name)
    inputs = families.inputs(name, model, size=2)
    wanted = unpatched(model, inputs)
    assert replace(find_parts(model)) > 8
    assert replace(find_parts(model)) == 0, "a second time there is nothing left"
    assert ours(model, inputs) == unpatched(model, inputs) == wanted
    assert len(wanted) == NEW


class Seen(TorchDispatchMode):
    """The names of our ops that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "mmswap":
            self.names.append(function.name().partition("::")[2])
        return function(*args, **(kwargs or {}))


def test_ops_are_called_for_a_token_and_not_for_a_prompt() -> None:
    model = families.build("gemma4")
    replace(find_parts(model))
    layer = find_parts(model).layers[0][1]
    with Seen() as seen:
        layer.mlp(torch.randn(1, 40, 64))
    assert seen.names == []
    with Seen() as seen:
        layer.mlp(torch.randn(1, 1, 64))
    assert seen.names == ["linear", "linear", "linear"]


def test_a_copy_computes_with_its_own_weights() -> None:
    model = families.build("gemma4")
    replace(find_parts(model))
    norm = find_parts(model).norm
    twin = copy.deepcopy(norm)
    assert norm is not None
    assert twin is not None
    with torch.no_grad():
        twin.weight.zero_()  # type: ignore[operator, union-attr]
    x = torch.randn(1, 1, norm.weight.numel())  # type: ignore[operator, union-attr]
    assert not torch.equal(twin(x), norm(x))
