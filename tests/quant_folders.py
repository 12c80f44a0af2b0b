"""Folders of tiny random models whose decoder is stored in 4 bits as other tools write it, each with its plain twin.

`write(folder, family, "gptq")` writes `folder/packed` and `folder/plain`: the same numbers, so that both must answer
alike. Knows nothing of mmswap; the layers are written by `llm/quant/stored_layers.py`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_PATH = Path(__file__).parent / "llm" / "quant" / "stored_layers.py"
_SPEC = importlib.util.spec_from_file_location("stored_layers", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
stored_layers = sys.modules.setdefault("stored_layers", importlib.util.module_from_spec(_SPEC))
_SPEC.loader.exec_module(stored_layers)

Write = Callable[[int, int, int], Any]  # inputs, outputs, seed -> Layer

KINDS: dict[str, Write] = {
    "gptq": lambda i, o, seed: stored_layers.gptq(i, o, 16, seed=seed),
    "gptq_v2": lambda i, o, seed: stored_layers.gptq(i, o, 32, form="gptq_v2", seed=seed),
    "gptq_act": lambda i, o, seed: stored_layers.gptq(i, o, 16, act=True, seed=7),  # one order for layers merged later
    "gptq_all": lambda i, o, seed: stored_layers.gptq(i, o, -1, seed=seed),
    "gptq_bias": lambda i, o, seed: stored_layers.gptq(i, o, 32, bias=True, seed=seed),
    "awq": lambda i, o, seed: stored_layers.awq(i, o, 16, seed=seed),
    "compressed": lambda i, o, seed: stored_layers.compressed(i, o, 16, seed=seed),
    "compressed_asym": lambda i, o, seed: stored_layers.compressed(i, o, 32, symmetric=False, seed=seed),
    "compressed_act": lambda i, o, seed: stored_layers.compressed(i, o, 16, act=True, seed=seed),
    "compressed_channel": lambda i, o, seed: stored_layers.compressed(i, o, -1, seed=seed),
}

_LINEAR = re.compile(
    r"(?!.*(vision|visual))(.*\blayers\.\d+\..*)\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|qkv_proj|"
    r"gate_up_proj)\.weight"
)
_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def write(folder: Path, family: str, kind: str, *, layers: int = 2) -> None:
    """Both folders, of a model without tokenizer."""
    families.build(family, layers=layers).save_pretrained(folder / "plain")
    pack(folder / "plain", folder / "packed", kind)


def pack(plain: Path, packed: Path, kind: str) -> None:
    """Make a packed twin of a folder, and give the plain one the numbers that the packed one stands for."""
    shutil.copytree(plain, packed)
    tensors = load_file(plain / "model.safetensors")
    written: dict[str, Tensor] = {}
    section: dict[str, Any] = {}
    for seed, (name, tensor) in enumerate(sorted(tensors.items())):
        if _LINEAR.fullmatch(name):
            layer = KINDS[kind](tensor.shape[1], tensor.shape[0], seed)
            tensors[name] = torch.from_numpy(layer.weight).to(tensor.dtype)
            own = name.removesuffix("weight")
            if "bias" in layer.tensors and f"{own}bias" in tensors:
                tensors[f"{own}bias"] = layer.tensors["bias"].to(tensor.dtype)
            elif "bias" in layer.tensors:  # some tools write one for every layer
                layer.tensors["bias"] = torch.zeros_like(layer.tensors["bias"])
            written |= {f"{own}{suffix}": value for suffix, value in layer.tensors.items()}
        elif fused := _FUSED.fullmatch(name):
            tensors[name], experts, layer = _experts(fused[1], fused[2], tensor, kind, seed)
            written |= experts
        else:
            written.setdefault(name, tensor)
            continue
        section = layer.section
    _save(plain, tensors)
    _save(packed, written)
    _describe(packed, section)


def _experts(where: str, part: str, fused: Tensor, kind: str, seed: int) -> tuple[Tensor, dict[str, Tensor], Any]:
    """(the plain stack as transformers writes it, each expert's own layers, the last of them)."""
    names = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
    written: dict[str, Tensor] = {}
    stack = []
    for index, expert in enumerate(fused):  # [out, in]
        halves = []
        for place, name in enumerate(names):
            layer = KINDS[kind](expert.shape[1], expert.shape[0] // len(names), seed * 100 + index * 2 + place)
            halves.append(torch.from_numpy(layer.weight).to(fused.dtype))
            written |= {f"{where}.{index}.{name}.{suffix}": value for suffix, value in layer.tensors.items()}
        stack.append(torch.cat(halves))
    return torch.stack(stack), written, layer


def _save(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def _describe(folder: Path, section: dict[str, Any]) -> None:
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    said["quantization_config"] = section
    (folder / "config.json").write_text(json.dumps(said), encoding="utf-8")
