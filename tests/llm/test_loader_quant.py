"""Checkpoints in 4 bits through the whole loader: the same answers as their plain twins, in every format and family."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import families
import pytest
import quant_folders
import torch
from safetensors.torch import load_file, save_file

from mmswap.errors import ModelError
from mmswap.llm.loader import load_model
from mmswap.llm.loading import Rounded4
from mmswap.llm.quant import QuantLinear, QuantStack

NEW = 8
FAMILIES = ("qwen2_5_vl", "qwen3_vl", "gemma3", "llava", "mllama", "qwen3_vl_moe", "idefics3", "glm4v")


def answer(name: str, model: Any) -> list[int]:
    given = families.inputs(name, model, size=2, text=10)
    ids = model.generate(**given, max_new_tokens=NEW, do_sample=False, eos_token_id=100_000)
    found: list[int] = ids[0, given["input_ids"].shape[1] :].tolist()
    return found


def logits(name: str, model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(**families.inputs(name, model, size=2, text=10)).logits
    return found


def check(name: str, folder: Path) -> Any:
    packed, plain = load_model(folder / "packed"), load_model(folder / "plain")
    assert packed.dtype == plain.dtype == torch.float32
    assert answer(name, packed) == answer(name, plain)
    torch.testing.assert_close(logits(name, packed), logits(name, plain), rtol=1e-3, atol=1e-3)
    return packed


PAIRS = [*zip(FAMILIES, itertools.cycle(["gptq", "awq", "compressed_asym"])), ("qwen3_vl_moe", "gptq")]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_family_answers_as_its_plain_twin(name: str, kind: str, tmp_path: Path) -> None:
    quant_folders.write(tmp_path, name, kind)
    packed = check(name, tmp_path)
    linears = [module for module in packed.modules() if isinstance(module, QuantLinear)]
    stacks = [module for module in packed.modules() if isinstance(module, QuantStack)]
    assert len(linears) == 2 * (4 if stacks else 6 if name == "glm4v" else 7)
    assert len(stacks) == (4 if name == "qwen3_vl_moe" else 0)
    assert not hasattr(packed.config, "quantization_config")


@pytest.mark.parametrize("name", ["glm4v_moe", "qwen3_5_moe"])
@pytest.mark.parametrize("kind", ["awq", "gptq_act"])
def test_experts_that_transformers_merges_are_merged_in_4_bits(name: str, kind: str, tmp_path: Path) -> None:
    quant_folders.write(tmp_path, name, kind, layers=4)
    packed = check(name, tmp_path)
    stacks = [module for module in packed.modules() if isinstance(module, QuantStack)]
    assert stacks
    assert all((stack.order is not None) == (kind == "gptq_act") for stack in stacks)


def test_experts_whose_scales_are_of_different_dtypes(tmp_path: Path) -> None:
    quant_folders.write(tmp_path, "qwen3_vl_moe", "gptq")
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(path)
    wide = {k: v.float() for k, v in tensors.items() if ".experts.1." in k and k.endswith(".scales")}
    assert wide
    save_file(tensors | wide, path, {"format": "pt"})
    packed = check("qwen3_vl_moe", tmp_path)
    assert {one.scales.dtype for one in packed.modules() if isinstance(one, QuantStack)} == {torch.float32}


@pytest.mark.parametrize("name", ["glm4v", "glm4v_moe", "qwen3_5_moe", "aria", "lfm2_vl", "florence2", "gemma4"])
def test_rounding_is_the_same_as_rounded_plain_weights(name: str, tmp_path: Path) -> None:
    plain = families.build(name)
    plain.save_pretrained(tmp_path)
    before = logits(name, plain)
    rounded = load_model(tmp_path, quantize=Rounded4())
    for path, module in rounded.named_modules():
        if isinstance(module, QuantLinear):
            plain.get_submodule(path).weight.data = module.dequantise(torch.float32)
        elif isinstance(module, QuantStack):
            home, _, attribute = path.rpartition(".")
            getattr(plain.get_submodule(home), attribute).data = module.dequantise(torch.float32).contiguous()
    wanted = logits(name, plain)
    torch.testing.assert_close(logits(name, rounded), wanted, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(wanted, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "kind", [kind for kind in quant_folders.KINDS if kind not in ("gptq", "awq", "compressed_asym")]
)
def test_every_format_answers_as_its_plain_twin(kind: str, tmp_path: Path) -> None:
    quant_folders.write(tmp_path, "qwen2_5_vl", kind)
    packed = check("qwen2_5_vl", tmp_path)
    attention = packed.model.language_model.layers[0].self_attn
    assert attention.q_proj.bias is not None
    assert (attention.o_proj.bias is not None) == (kind == "gptq_bias"), "a bias of the file's own is kept"


TOWERS = ("model.visual.", "visual.")
LANGUAGES = ("model.language_model.", "language_model.model.", "model.")
IGNORED: tuple[dict[str, Any], ...] = ({"modules_to_not_convert": ["visual"]}, {"dynamic": {"-:.*visual.*": {}}})


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    quant_folders.write(folder, "qwen2_5_vl", "gptq")
    return folder


def renamed(stored: Path, folder: Path, tower: str, language: str, more: dict[str, Any]) -> Path:
    """The packed folder with other names of both towers, and another list of what is not packed."""
    folder.mkdir(exist_ok=True)
    head = "language_model." if language.startswith("language_model") else ""

    def name(old: str) -> str:
        if old.startswith("lm_head"):
            return head + old
        inner = old.removeprefix("model.")
        return tower + inner.removeprefix("visual.") if inner.startswith("visual.") else language + inner

    tensors = load_file(stored / "packed" / "model.safetensors")
    strip = {old: old.replace("model.language_model.", "model.") for old in tensors}
    save_file(
        {name(strip[old]): tensor for old, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    said = json.loads((stored / "packed" / "config.json").read_text(encoding="utf-8"))
    said["quantization_config"] |= more
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("tower", "language", "more"), list(itertools.product(TOWERS, LANGUAGES, IGNORED)))
def test_towers_are_plain_under_any_name(
    tower: str, language: str, more: dict[str, Any], stored: Path, tmp_path: Path
) -> None:
    """Case D7: prefixes change between library versions, and both towers have an mlp.gate_proj."""
    model = load_model(renamed(stored, tmp_path, tower, language, more))
    wanted = load_model(stored / "plain")
    seen = model.model.visual.blocks[0].mlp.gate_proj.weight
    assert torch.equal(seen, wanted.model.visual.blocks[0].mlp.gate_proj.weight)
    assert isinstance(model.model.language_model.layers[0].mlp.gate_proj, QuantLinear)
    torch.testing.assert_close(logits("qwen2_5_vl", model), logits("qwen2_5_vl", wanted), rtol=1e-3, atol=1e-3)


def test_packed_module_that_the_model_has_not_is_named(stored: Path, tmp_path: Path) -> None:
    folder = renamed(stored, tmp_path, "visual.", "model.", {})
    tensors = load_file(folder / "model.safetensors")
    more = {k.replace("layers.0.", "layers.7."): v.clone() for k, v in tensors.items() if "layers.0.mlp.up_proj" in k}
    save_file(tensors | more, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"holds model\.layers\.7\.mlp\.up_proj in 4 bits, .*no place"):
        load_model(folder)


def test_packed_part_that_the_file_lacks_is_named(stored: Path, tmp_path: Path) -> None:
    folder = renamed(stored, tmp_path, "visual.", "model.", {})
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.self_attn.o_proj" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks .*layers\.1\.self_attn\.o_proj\.weight"):
        load_model(folder)
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1.self_attn.o_proj.scales" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.o_proj.*scales is missing"):
        load_model(folder)


def test_other_shapes_than_the_config_says(stored: Path, tmp_path: Path) -> None:
    folder = renamed(stored, tmp_path, "visual.", "model.", {})
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    said["text_config"]["intermediate_size"] = 80
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.(gate_proj|up_proj|down_proj)"):
        load_model(folder)


@pytest.mark.parametrize("where", ["its own file", "text_config", "compression_config"])
def test_section_of_old_and_new_repositories(where: str, stored: Path, tmp_path: Path) -> None:
    folder = renamed(stored, tmp_path, "visual.", "model.", {})
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    section = said.pop("quantization_config")
    if where == "its own file":  # as AutoGPTQ wrote it: no method, and often no name that anybody expects
        del section["quant_method"]
        (folder / "quantize_config.json").write_text(json.dumps(section), encoding="utf-8")
        (folder / "model.safetensors").rename(folder / "gptq_model-4bit-16g.safetensors")
    elif where == "text_config":
        said["text_config"]["quantization_config"] = section
    else:
        said["compression_config"] = section
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
    model = load_model(folder)
    assert isinstance(model.model.language_model.layers[1].self_attn.q_proj, QuantLinear)
    wanted = logits("qwen2_5_vl", load_model(stored / "plain"))
    torch.testing.assert_close(logits("qwen2_5_vl", model), wanted, rtol=1e-3, atol=1e-3)


def test_a_weight_that_cannot_be_rounded_is_named(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "plain" / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    tensors[name][3, 5] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((stored / "plain" / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight: a weight that is not finite"):
        load_model(tmp_path, quantize=Rounded4())


def test_progress_counts_plain_and_packed_weights(stored: Path) -> None:
    counts: list[tuple[int, int]] = []
    load_model(stored / "packed", progress=lambda done, total: counts.append((done, total)))
    assert [done for done, _ in counts] == list(range(1, len(counts) + 1))
    assert {total for _, total in counts} == {len(counts)}
