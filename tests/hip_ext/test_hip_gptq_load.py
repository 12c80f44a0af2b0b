"""A GPTQ checkpoint is brought into the layout by the kernel where a card has it, and the model is the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quant_folders
import torch
from stand_in import Both
from torch import Tensor

from mmswap import weights
from mmswap.errors import KernelError
from mmswap.hip_ext import supply
from mmswap.llm.checkpoint import check_checkpoint
from mmswap.llm.loader import load_checked, load_config
from mmswap.llm.loading import Options
from mmswap.llm.ops import backends, use, using
from mmswap.llm.quant import gptq

CPU = torch.device("cpu")


@pytest.fixture
def kernels(both: Both, monkeypatch: pytest.MonkeyPatch) -> Both:
    """The processor stands for a card, and has native kernels."""
    monkeypatch.setitem(supply._held, CPU, both.launchers)
    monkeypatch.setattr(backends, "_availability", {})
    monkeypatch.setattr(gptq, "HOST", "elsewhere")
    use("auto")
    both.told()
    return both


def loaded(folder: Path, card: torch.device | None) -> dict[str, Tensor]:
    options = Options(dtype=torch.float32, card=card)
    model: Any = load_checked(folder, check_checkpoint(folder), load_config(folder), options).model
    return dict(model.state_dict())


@pytest.mark.parametrize("kind", ["gptq", "gptq_act", "gptq_all"])
def test_the_model_is_the_one_that_the_host_makes(kernels: Both, tmp_path: Path, kind: str) -> None:
    quant_folders.write(tmp_path, "qwen2_5_vl", kind)
    with using("reference"):
        host = loaded(tmp_path / "packed", None)
    assert kernels.told() == []
    with using("hip"):
        card = loaded(tmp_path / "packed", CPU)
    packed = sum(name.endswith(".words") for name in host)
    assert [start[0] for start in kernels.told()] == ["mms_k_gptq"] * packed
    assert host.keys() == card.keys()
    assert packed
    assert all(torch.equal(host[name], card[name]) for name in host)


def test_a_kernel_that_fails_leaves_the_work_to_the_host(
    kernels: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quant_folders.write(tmp_path, "qwen2_5_vl", "gptq")
    with using("reference"):
        host = loaded(tmp_path / "packed", None)

    def fail(*_: Any) -> None:
        monkeypatch.setattr(gptq, "HOST", "cpu")  # what is left is asked of the host
        raise KernelError("the driver is gone")

    monkeypatch.setattr(kernels.launchers, "mms_gptq_shuffle", fail)
    with using("hip"):
        card = loaded(tmp_path / "packed", CPU)
    assert all(torch.equal(host[name], card[name]) for name in host)
    assert [record.getMessage() for record in caplog.records if "GPTQ" in record.getMessage()] == [
        "GPTQ's weights are laid out on the host, because the card cannot: the driver is gone"
    ]


def test_only_a_card_whose_kernel_is_right_does_it(kernels: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    card: Any = SimpleNamespace(device=CPU)
    assert weights._that_shuffles(card, said.append) is None
    card.device = SimpleNamespace(type="cuda")
    for row, off, takes in (("hip", 0.0, True), ("hip", 0.1, False), ("reference", 0.0, False)):
        monkeypatch.setattr(weights, "trial", lambda *_, r=row, o=off: (SimpleNamespace(backend=r), o))
        assert (weights._that_shuffles(card, said.append) is card.device) == takes
    assert said == []

    def fail(*_: Any) -> None:
        raise RuntimeError("HIP error: no kernel image\nmore")

    monkeypatch.setattr(weights, "trial", fail)
    assert weights._that_shuffles(card, said.append) is None
    assert said == ["GPTQ's weights are laid out on the host, because the card fails: HIP error: no kernel image."]
