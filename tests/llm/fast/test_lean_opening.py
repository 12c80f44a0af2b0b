"""Which models decode part by part, and that a part which is not what it seems keeps the model's own forward.

That the ids are those of unpatched `generate()` is in `test_decode.py`, for every family.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import families
import pytest
import torch
from torch import nn

from mmswap.llm.fast import Refused, open_lean
from mmswap.llm.fast.norm import norm_of


@pytest.mark.parametrize("name", [*families.FAMILIES, *families.HELD_OUT])
def test_every_family_decodes_part_by_part_or_says_why_not(name: str) -> None:
    if name in families.OWN_FORWARD:
        with pytest.raises(Refused, match=re.escape(families.OWN_FORWARD[name])):
            open_lean(families.shared(name))
    else:
        assert open_lean(families.shared(name)).describe().startswith("4 layers.")


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "cohere2_vision", "qwen3_vl_moe"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_models_decode_part_by_part(name: str, dtype: torch.dtype) -> None:
    assert open_lean(families.build(name, dtype=dtype)).describe().startswith("4 layers.")


def test_hybrid_layers_keep_their_own_attention() -> None:
    assert "it attended 0 times" in open_lean(families.shared("qwen3_5")).describe()


def test_nothing_is_left_on_the_model() -> None:
    model = families.build("qwen2_5_vl")
    before = {name: set(vars(part)) for name, part in model.named_modules()}
    open_lean(model)
    assert {name: set(vars(part)) for name, part in model.named_modules()} == before
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def _decoder(model: Any) -> Any:
    return model.model.language_model


def _halved_output(model: Any) -> None:
    layer = _decoder(model).layers[1]
    forward = layer.forward
    layer.forward = lambda *args, **kwargs: forward(*args, **kwargs) * 0.5


def _added_to_attention(model: Any) -> None:
    attention = _decoder(model).layers[2].self_attn
    forward = attention.forward
    attention.forward = lambda *args, **kwargs: (forward(*args, **kwargs)[0] + 0.1, None)


def _part_of_its_own(model: Any) -> None:
    _decoder(model).layers[0].gate = nn.Linear(2, 2)


def _weight_of_its_own(model: Any) -> None:
    _decoder(model).layers[3].scale = nn.Parameter(torch.ones(1))


def _head_changed(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda module, args, output: output)
    forward = model.forward

    def shifted(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        outputs.logits = outputs.logits * 1.5
        return outputs

    model.forward = shifted


def _embeddings_changed(model: Any) -> None:
    layer = _decoder(model).layers[0]
    forward = layer.forward
    layer.forward = lambda hidden, *args, **kwargs: forward(hidden + 1.0, *args, **kwargs)


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (_halved_output, "its numbers came out differently"),
        (_added_to_attention, "its numbers came out differently"),
        (_part_of_its_own, "gate of its layers was not used"),
        (_weight_of_its_own, "its layers have scale beside their parts"),
        (_head_changed, "its head's numbers are changed"),
        (_embeddings_changed, "its numbers came out differently"),
    ],
)
def test_a_model_that_computes_something_else_keeps_its_own_forward(plant: Callable[[Any], None], why: str) -> None:
    model = families.build("qwen2_vl")
    plant(model)
    with pytest.raises(Refused, match=why):
        open_lean(model)


class _Odd(nn.Module):
    """A norm that no variant of the op computes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_norm_of_another_kind_is_called_as_it_is() -> None:
    x, y = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    odd = _Odd(8)
    norm = norm_of(odd, x)
    normed, summed = norm.joined(y, x)
    torch.testing.assert_close(norm(x), odd(x))
    torch.testing.assert_close(summed, x + y)
    torch.testing.assert_close(normed, odd(x + y))
