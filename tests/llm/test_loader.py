"""Loading by the one path: progress, dtypes, missing weights, wrong kinds, tokenizers of unknown class, hub errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from huggingface_hub import errors as hub
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mmswap.errors import ModelError, UserError
from mmswap.llm import source
from mmswap.llm.checkpoint import check_checkpoint
from mmswap.llm.loader import load_config, load_model, resolve_dtype, stored_dtype
from mmswap.llm.source import resolve_source
from mmswap.units import GIB, MIB

SHARD = "900KB"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    families.build("qwen2_5_vl").save_pretrained(folder, max_shard_size=SHARD)
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def change(path: Path, **fields: Any) -> None:
    said = json.loads(path.read_text(encoding="utf-8")) | fields
    said = {key: value for key, value in said.items() if value is not ...}
    path.write_text(json.dumps(said), encoding="utf-8")


def test_loaded_model_is_the_saved_one(saved: Path) -> None:
    counts: list[tuple[int, int]] = []
    model = load_model(saved, progress=lambda done, total: counts.append((done, total)))
    assert len(check_checkpoint(saved).files) > 1
    wanted = families.build("qwen2_5_vl").state_dict()
    given = model.state_dict()
    assert given.keys() == wanted.keys()
    assert all(torch.equal(given[name], wanted[name]) for name in wanted)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert counts[-1][0] == counts[-1][1] == len(counts) > 10


def test_weights_that_the_header_calls_whole_numbers_are_refused(copied: Path) -> None:
    path = next(copied.glob("model-00002*.safetensors"))
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(".weight"))
    save_file(tensors | {name: tensors[name].view(torch.int32)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"{path.name} holds {name} as I32, which is no float"):
        load_model(copied)
    mask = {"model.layers.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool)}  # as old models saved it
    save_file(tensors | mask, path, metadata={"format": "pt"})
    index = json.loads((copied / "model.safetensors.index.json").read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(mask, path.name)
    (copied / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    load_model(copied)


def test_dtype_and_attention_are_obeyed(saved: Path) -> None:
    model = load_model(str(saved), dtype=torch.bfloat16, attention="eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"


def test_a_family_without_sdpa_is_given_eager(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    families.build("got_ocr2").save_pretrained(tmp_path)
    assert load_model(tmp_path).config._attn_implementation == "eager"
    assert "eager is used" in caplog.text


def test_tensor_that_is_in_no_shard_is_not_left_random(copied: Path) -> None:
    index = json.loads((copied / "model.safetensors.index.json").read_text(encoding="utf-8"))
    lost, shard = next((name, file) for name, file in index["weight_map"].items() if "mlp.down_proj.weight" in name)
    kept = load_file(copied / shard)
    del kept[lost], index["weight_map"][lost]
    save_file(kept, copied / shard, metadata={"format": "pt"})
    (copied / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelError, match=r"lacks .*mlp\.down_proj\.weight"):
        load_model(copied)


def test_damaged_shard_is_found_before_the_config_is_read(copied: Path) -> None:
    path = sorted(copied.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-3])
    (copied / "config.json").unlink()
    with pytest.raises(ModelError, match=path.name):
        load_model(copied)


def test_other_shapes_than_the_config_says(copied: Path) -> None:
    said = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    change(copied / "config.json", text_config={**said["text_config"], "intermediate_size": 80})
    with pytest.raises(ModelError, match=r"down_proj|gate_proj|up_proj"):
        load_model(copied)


def test_field_that_is_left_out_takes_its_default(copied: Path) -> None:
    said = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    del said["vision_config"]["num_heads"]
    change(copied / "config.json", vision_config=said["vision_config"])
    assert load_config(copied).vision_config.num_heads == 16


def test_wrong_kinds_of_models_are_named(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="llama model without a vision tower"):
        load_model(tmp_path)
    change(tmp_path / "config.json", model_type="nope_vl", architectures=["NopeVL"])
    with pytest.raises(ModelError, match="nope_vl"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("stored", "nbytes", "host", "fast", "wanted", "given", "why"),
    [
        (torch.bfloat16, 9 * GIB, False, False, "auto", torch.bfloat16, "stored"),
        (torch.float16, 9 * GIB, False, False, "auto", torch.float16, "stored"),
        (torch.float16, 9 * GIB, True, True, "auto", torch.float16, "stored"),
        (torch.float16, 9 * GIB, True, False, "auto", torch.float32, "9.0 GiB"),
        (torch.float16, 5 * MIB, True, False, "auto", torch.float16, "stored"),
        (torch.bfloat16, 9 * GIB, True, False, "auto", torch.bfloat16, "stored"),
        (torch.float32, 9 * GIB, True, False, "auto", torch.float32, "stored"),
        (torch.float16, 9 * GIB, True, False, "float16", torch.float16, "--dtype"),
    ],
)
def test_dtype_is_decided_with_its_reason(
    stored: torch.dtype, nbytes: int, host: bool, fast: bool, wanted: str, given: torch.dtype, why: str
) -> None:
    dtype, reason = resolve_dtype(stored, nbytes, host=host, wanted=wanted, half_is_fast=fast)
    assert dtype == given
    assert why in reason
    assert reason.startswith(str(given).removeprefix("torch."))


def test_stored_dtype_is_that_of_most_bytes(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(90, dtype=torch.float16), "b": torch.zeros(4), "c": torch.zeros(99, dtype=torch.int8)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert stored_dtype(None, check_checkpoint(tmp_path)) == torch.float16


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere/at/all", "a/b/c", "~/nowhere", "C:\\models\\x", "", "what is it"]
)
def test_no_such_folder(name: str) -> None:
    with pytest.raises(ModelError, match="There is no folder"):
        resolve_source(name)


def test_a_file_is_no_folder(saved: Path) -> None:
    with pytest.raises(ModelError, match="is a file"):
        resolve_source(saved / "config.json")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (hub.LocalEntryNotFoundError("x"), "not in the hub's cache"),
        (ConnectionError("x"), "could not be reached"),
        (OSError("x"), "could not be reached"),
        (hub.HFValidationError("x"), "neither a folder here nor a model on the hub"),
    ],
)
def test_hub_errors_become_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(source, "snapshot_download", fail)
    with pytest.raises(UserError, match=sentence) as caught:
        resolve_source("org/name")
    assert "\n" not in str(caught.value)


def test_a_hub_id_is_loaded_by_the_same_path(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    asked: list[Any] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, "*.py" in allow_patterns))
        return str(saved)

    monkeypatch.setattr(source, "snapshot_download", snapshot)
    assert load_model("org/name").config.model_type == "qwen2_5_vl"
    resolve_source("org/name", trust_remote_code=True)
    assert asked == [("org/name", False), ("org/name", True)]
