"""Decoders that no family of the tests has: norms over whole projections, eager attention, sinks, parallel layers.

Each is taken through the lean step over growing slots and wrapped windows, beside unpatched `generate()`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from decoding import ours, unpatched
from transformers import AutoModelForCausalLM

from mmswap.llm.decoding import Decoding
from mmswap.llm.fast import LeanStep, Refused, open_lean
from mmswap.llm.fast.rope import Ropes
from mmswap.llm.fast.sighting import Call

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 400,
}
SIZES |= {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
KINDS = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 2}
FOUR_HEADS = {"num_key_value_heads": 4}

DECODERS: dict[str, dict[str, Any]] = {
    "Olmo2Config": FOUR_HEADS,  # one norm over all heads of a projection
    "OlmoeConfig": {**FOUR_HEADS, **EXPERTS},
    "MiniMaxM2Config": EXPERTS,  # the same, and fewer heads of keys
    "Gemma2Config": {**KINDS, "query_pre_attn_scalar": 16},  # eager attention, with a soft cap
    "GptOssConfig": {**KINDS, **EXPERTS},  # sinks
    "AfmoeConfig": {**KINDS, **EXPERTS, "num_dense_layers": 1},  # names its mask
    "GPTJConfig": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_inner": 96, "rotary_dim": 8, "vocab_size": 400},
}


OPAQUE = {  # attention that is called as it is; GPT-J's stands beside the MLP, and stored every token twice
    "AfmoeConfig": ["it has 5 projections in another order than query, key, value, output"],
    "GPTJConfig": ["it calls more than projections and norms"],
}


def model_of(name: str) -> Any:
    own = DECODERS[name]
    config = getattr(transformers, name)(**(own if "n_embd" in own else SIZES | own))
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 2, 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=1.2 / parameter[0].numel() ** 0.5)
            else:
                parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("name", DECODERS)
def test_answers_part_by_part_are_those_of_generate(name: str) -> None:
    model = model_of(name)
    lean = open_lean(model)
    assert lean.opaque == OPAQUE.get(name, [])
    for tokens in (9, 40):  # 16 slots are outgrown; a window has wrapped
        words = torch.randint(3, 380, (1, tokens), generator=torch.Generator().manual_seed(tokens))
        inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
        wanted = unpatched(model, inputs)
        assert ours(model, inputs, decoding=Decoding(lean)) == wanted
        assert ours(model, inputs, chunk=16, decoding=Decoding(lean)) == wanted


def test_positions_that_are_floats_are_told_from_hidden_states() -> None:
    """Qwen3-Omni's: they were taken for hidden states, and the whole model kept its own forward."""

    class Turning(torch.nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            angles = position_ids[..., None] * torch.ones(4)
            return angles.cos().to(x.dtype), angles.sin()

    module, h = Turning(), torch.randn(1, 1, 64)
    ropes = Ropes([Call(module, (h,), {"position_ids": torch.full((3, 1, 1), 6.0)})])
    assert ropes.seen_at == 6
    (pair,) = ropes.at(h, torch.tensor([[9]], dtype=torch.int32))
    assert torch.equal(pair[0], module(h, torch.full((3, 1, 1), 9.0))[0])
    with ropes.noting() as noted:
        module(torch.randn(1, 5, 64), torch.arange(5.0).expand(3, 1, 5))
    assert noted.next == 5


@pytest.mark.parametrize("fault", [RuntimeError("sizes\nand more"), AssertionError()])
def test_a_step_that_stumbles_keeps_the_models_own_forward(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once ended the load: only faults of the library's code were expected."""

    def stumble(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(LeanStep, "forward", stumble)
    with pytest.raises(Refused, match=r"^its parts could not be run one by one: (sizes|AssertionError)$"):
        open_lean(model_of("Olmo2Config"))
