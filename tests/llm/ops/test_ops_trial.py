"""Each op tried once at load: what fails or is wrong on this device is withdrawn, and the next backend computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import families
import pytest
import torch
from cases import HERE

from mmswap.card import open_card
from mmswap.config import RunConfig
from mmswap.llm.decoding import open_decoding
from mmswap.llm.kv.caching import decide
from mmswap.llm.ops import backends, cpu, resolve, use
from mmswap.llm.ops.backends import Implementation
from mmswap.llm.ops.trial import ops_on, sample, trial, verify
from mmswap.llm.parts import find_parts

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def nothing_withdrawn() -> Iterator[None]:
    yield
    backends._withdrawn.clear()
    use("auto")


def planted(monkeypatch: pytest.MonkeyPatch, op: str, run: Callable[..., Any]) -> None:
    monkeypatch.setitem(cpu.IMPLEMENTATIONS, op, Implementation(run, lambda *_: None))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_is_right_here(dtype: torch.dtype) -> None:
    assert verify(CPU, dtype) == []


def test_the_processors_layout_is_not_tried_on_a_card() -> None:
    assert "int4pack" not in ops_on(torch.device("cuda"))


@pytest.mark.parametrize("op", HERE)
def test_what_fails_is_withdrawn(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no code for this card\nmore")

    planted(monkeypatch, op, fails)
    why = "it fails here (RuntimeError: no code for this card)"
    assert verify(CPU, torch.bfloat16) == [f"{op} is not computed by cpu: {why}."]
    assert resolve(op, *sample(op, CPU, torch.bfloat16))[1:] == ("reference", (("cpu", why),))


def test_what_is_wrong_is_withdrawn_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "rms_norm", lambda x, *_: torch.zeros_like(x))
    row = (torch.ones(1, 8), None, 1e-6, 0.0, True)
    assert torch.ops.mmswap.rms_norm(*row)[0, 0] == 0
    assert verify(CPU, torch.float32) == ["rms_norm is not computed by cpu: it is off by 1 of the largest value."]
    assert torch.ops.mmswap.rms_norm(*row)[0, 0] == pytest.approx(1)


def test_numbers_that_are_none_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "silu_and_mul", lambda x: torch.full_like(x[..., ::2], torch.nan))
    assert len(verify(CPU, torch.float32)) == 1


def test_a_trial_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trial("rotary", CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_is_loaded_with_what_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    planted(monkeypatch, "rms_norm", lambda x, *_: torch.zeros_like(x))
    model, said = families.build("qwen2_vl"), []
    caching = decide(model, "auto")
    open_decoding(model, find_parts(model), open_card("cpu"), RunConfig(), caching.open, said.append)
    lost = "rms_norm is not computed by cpu: it is off by 1 of the largest value."
    assert said[0] == f"Ops: {lost}"
    assert lost in caplog.text
    assert any("part by part" in sentence for sentence in said)
