"""How tokens are computed: chosen at load with reasons; threads are set for a token and given back."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch
from decoding import ours, unpatched
from family_configs import clip, text
from transformers import AutoModelForImageTextToText, LlavaConfig

from mmswap.card import open_card
from mmswap.config import RunConfig
from mmswap.llm.decoding import Decoding, open_decoding
from mmswap.llm.fast import LeanStep
from mmswap.llm.kv.caching import decide
from mmswap.llm.kv.proof import cannot_be_parted
from mmswap.llm.ops.threads import Threads
from mmswap.llm.parts import find_parts
from mmswap.llm.sdpa import Kernels


def opened(name: str, card: str = "cpu", **options: Any) -> tuple[Decoding, list[str]]:
    model, said = families.build(name), []
    config = RunConfig.of(card=card, **options)
    caching = decide(model, "auto")
    return open_decoding(model, find_parts(model), open_card(card), config, caching.open, said.append), said


def test_a_model_whose_parts_are_known() -> None:
    decoding, said = opened("qwen2_vl")
    assert isinstance(decoding.step, LeanStep)
    assert said == [
        "Decode: part by part, not captured, because a processor has no graphs; 3 tokens came out as from the model's "
        "own forward. 4 layers.",
        "Threads of a token: one thread, because OMP_NUM_THREADS is set.",
    ]


def test_a_model_that_keeps_its_forward_gets_parts_of_ours() -> None:
    decoding, said = opened("gemma4")
    assert decoding.step is None
    begun = "Decode: through the model's own forward, because its layers have layer_scalar beside their parts. "
    assert said[0].startswith(begun)
    assert int(said[0].removeprefix(begun).split()[0]) > 8


def test_decode_model_changes_nothing() -> None:
    assert opened("qwen2_vl", decode="model") == (
        Decoding(),
        ["Decode: through the model's own forward, because --decode model was given."],
    )


def test_a_simulated_card_computes_on_as_many_threads_as_there_are() -> None:
    decoding, said = opened("qwen2_vl", card="sim:1GiB")
    assert decoding.threads is None
    assert not any(sentence.startswith("Threads") for sentence in said)


def test_threads_are_measured_with_the_models_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(step: Any) -> Threads:
        step()
        step()
        return Threads(3, "three")

    monkeypatch.setattr("mmswap.llm.decoding.threads.choose", choose)
    decoding, said = opened("gemma3")
    assert decoding.threads == 3
    assert said[-1] == "Threads of a token: three."


def test_threads_are_those_of_a_token_and_no_longer() -> None:
    before, inside = torch.get_num_threads(), []

    def token() -> None:
        with Decoding(threads=before + 1).token():
            inside.append(torch.get_num_threads())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        token()
    assert inside == [before + 1]
    assert torch.get_num_threads() == before


def test_the_prompts_kernels_are_those_that_passed() -> None:
    with Decoding(kernels=Kernels(())).prompt():
        assert not torch._C._get_flash_sdp_enabled()
    with Decoding().prompt():
        assert torch._C._get_flash_sdp_enabled()


def test_recurrent_layers_that_begin_anew_with_every_chunk_read_in_one_pass() -> None:
    """Jamba's keep no state over a piece of several tokens: a long prompt in chunks was answered wrongly."""
    layers = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    words = text(4, model_type="jamba", mamba_d_state=8, num_experts=4, **layers)
    config = LlavaConfig(vision_config=clip(64), text_config=words, image_token_index=390, image_seq_length=16)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval().requires_grad_(False)
    families.spread(model)
    inputs = families.inputs("llava", model, text=20)
    said: list[str] = []
    caching = decide(model, "auto")
    open_decoding(model, find_parts(model), open_card("cpu"), RunConfig.of(card="cpu"), caching.open, said.append)
    assert said[0].startswith("Every prompt is read in one pass, for this model cannot go on where a chunk ended: ")
    assert ours(model, inputs, chunk=16) == unpatched(model, inputs)


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2_vl"])
def test_recurrent_layers_that_go_on_are_read_in_chunks(name: str) -> None:
    assert cannot_be_parted(families.shared(name), decide(families.shared(name), "auto").open) is None


@pytest.mark.parametrize("autotune", [True, False])
def test_kernels_are_tuned_for_the_calls_of_a_token(
    autotune: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tuning = pytest.importorskip("mmswap.llm.ops.triton.tuning", reason="Triton is not installed")
    seen: list[tuple[set[str], bool]] = []

    def tune(calls: Any, say: Any, *, measure: bool) -> None:
        seen.append(({op for op, _ in calls}, measure))
        say("Tuning kernels for this card, 1 of 2")
        say("Tuning kernels for this card, 2 of 2")

    monkeypatch.setattr("mmswap.llm.decoding.missing", lambda name, device: None)
    monkeypatch.setattr(tuning, "tune", tune)
    _, said = opened("qwen2_vl", autotune=autotune)
    assert seen == [({"rms_norm", "fused_add_rms_norm", "rotary", "linear", "decode_attention"}, autotune)]
    assert said[0] == "Tuning kernels for this card, 1 of 2"
    assert [record.message[:36] for record in caplog.records] == [said[0]]
