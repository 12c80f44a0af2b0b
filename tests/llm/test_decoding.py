"""How tokens are computed: chosen at load with reasons; threads are set for a token and given back."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch

from mmswap.card import open_card
from mmswap.config import RunConfig
from mmswap.llm.decoding import Decoding, open_decoding
from mmswap.llm.fast import LeanStep
from mmswap.llm.kv.caching import decide
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
