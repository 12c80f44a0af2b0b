"""What loading takes and leaves behind: host memory at its peak, no mapped file, and failures that come at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import families
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

from mmswap.errors import ModelError
from mmswap.llm import loading
from mmswap.llm.loader import load_model
from mmswap.units import MIB

SHARD = 24 * MIB
SLACK = 64 * MIB  # what the allocator keeps of weights that were rounded; all of them plain would be twice that
HAS_PEAK = Path("/proc/self/clear_refs").exists()

_CHILD = """
import json, sys
from pathlib import Path
from mmswap.llm.loader import load_model
from mmswap.llm.loading import Rounded4

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

load_model(sys.argv[1])  # what a first load imports and allocates for good
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = kib("VmRSS")
model = load_model(sys.argv[2], quantize=Rounded4() if sys.argv[3] == "int4" else None)
held = {id(one): one.nbytes for one in (*model.parameters(), *model.buffers())}
print(json.dumps({"peak": (kib("VmHWM") - before) * 1024, "weights": sum(held.values())}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 MB of bfloat16 in seven shards."""
    folder = tmp_path_factory.mktemp("large")
    text = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 8}
    text |= {
        "num_key_value_heads": 8,
        "vocab_size": 2000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    text["rope_parameters"]["mrope_section"] = [8, 12, 12]  # type: ignore[index]
    vision = {"depth": 2, "hidden_size": 64, "num_heads": 4, "patch_size": 8, "out_hidden_size": 512}
    vision |= {"intermediate_size": 128, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    config.save_pretrained(folder)
    drawn = torch.randn(2048 * 512, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    tensors = {name: drawn[: one.numel()].view(one.shape).clone() for name, one in model.state_dict().items()}
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(held.nbytes for held in shards[-1].values()) + tensor.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = tensor
    placed = {}
    for index, shard in enumerate(shards):
        save_file(shard, folder / f"model-{index}.safetensors", {"format": "pt"})
        placed |= dict.fromkeys(shard, f"model-{index}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}), encoding="utf-8")
    assert len(shards) > 5
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    families.build("qwen2_5_vl", layers=1).save_pretrained(folder)
    return folder


@pytest.mark.skipif(not HAS_PEAK, reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("how", ["plain", "int4"])
def test_the_host_holds_the_weights_and_one_shard_at_most(how: str, large: Path, small: Path) -> None:
    run = [sys.executable, "-P", "-c", _CHILD, str(small), str(large), how]
    found = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    stored = sum(path.stat().st_size for path in large.glob("*.safetensors"))
    assert stored > 130 * MIB
    assert found["weights"] < (0.35 * stored if how == "int4" else stored)
    assert found["peak"] <= found["weights"] + SHARD + SLACK


def test_no_file_is_mapped_after_a_load_and_they_can_be_deleted(small: Path, tmp_path: Path) -> None:
    """Case B11: on Windows a mapped checkpoint cannot be moved, deleted or rewritten."""
    for path in small.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model = load_model(tmp_path)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path) not in maps.read_text()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert all(parameter.untyped_storage().resizable() for parameter in model.parameters())
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"\0" * path.stat().st_size)
        path.unlink()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("fault", ["missing", "shorter", "header"])
def test_a_bad_shard_is_named_before_a_model_is_made(
    fault: str, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case D9."""
    for path in large.iterdir():
        (tmp_path / path.name).symlink_to(path)
    last = tmp_path / "model-3.safetensors"
    raw = last.read_bytes()
    last.unlink()
    if fault != "missing":
        last.write_bytes(raw[:-10] if fault == "shorter" else raw[:30])
    monkeypatch.setattr(loading, "build", lambda *_, **__: pytest.fail("a model was made"))
    with pytest.raises(ModelError, match=r"model-3\.safetensors"):
        load_model(tmp_path)


def test_a_stray_file_is_not_looked_at(small: Path, tmp_path: Path) -> None:
    for path in small.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "consolidated.safetensors").write_bytes(b"not even a header")
    wanted = load_model(small).state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in load_model(tmp_path).state_dict().items())
