"""Tiny checkpoint folders that are whole: weights, config, processor, tokenizer and template that fit together.

`make_whole(path, family)` writes one; `WHOLE` says for which families. Knows nothing of mmswap.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import torch
import transformers
from family_configs import CONFIGS
from processor_folders import FAMILIES, make_folder
from tokenizers import Tokenizer

_PACKED = {"patch_size": 8, "size": {"shortest_edge": 32 * 32, "longest_edge": 96 * 96}}
_TILES = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}}

# family -> (the processor folder that it takes, what differs in its preprocessor_config, in its processor_config)
WHOLE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("qwen2_vl", _PACKED, {}),
    "qwen2_5_vl": ("qwen2_vl", _PACKED, {"processor_class": "Qwen2_5_VLProcessor"}),
    "qwen3_vl": ("qwen3_vl", _PACKED, {}),
    "qwen3_vl_moe": ("qwen3_vl", _PACKED, {}),
    "qwen3_5": ("qwen3_vl", _PACKED, {}),
    "gemma3": ("gemma3", {}, {}),
    "gemma4": ("gemma4", {"patch_size": 8}, {}),
    "idefics3": ("idefics3", _TILES, {"image_seq_len": 16}),
    "smolvlm": ("smolvlm", _TILES, {"image_seq_len": 16}),
    "llava": ("llava", {}, {}),
    "llava_next": ("llava_next", {}, {}),
    "llava_onevision": ("llava_onevision", {}, {}),
    "internvl": ("internvl", {}, {}),
    "pixtral": ("pixtral", {"patch_size": 8}, {"patch_size": 8}),
    "mistral3": ("pixtral", {"patch_size": 8}, {"patch_size": 8, "spatial_merge_size": 2}),
    "paligemma": ("paligemma", {}, {}),
    "glm4v": ("glm4v", _PACKED, {}),
    "mllama": ("mllama", {}, {}),
    "minicpmv4_6": ("minicpmv4_6", {"patch_size": 8}, {}),
}


def make_whole(
    path: Path, name: str, *, dtype: torch.dtype = torch.float32, template: bool = True, tied: bool | None = None
) -> Path:
    """Write the folder of a tiny random model of the family `name` and return it."""
    kind, pixels, processor = WHOLE[name]
    make_folder(path, kind, **({} if template else {"template": None}))
    _change(path / "preprocessor_config.json", pixels)
    _change(path / "processor_config.json", processor)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    model = _model(name, _ids(kind, tokenizer), dtype, tied)
    model.save_pretrained(path)
    return path


def _model(name: str, ids: dict[int, int], dtype: torch.dtype, tied: bool | None) -> Any:
    config_class, make = CONFIGS[name]
    settings = _mapped(make(4, 64), ids)
    if name == "gemma4":
        settings["vision_config"]["position_embedding_size"] = 256
    if tied is not None:
        settings["tie_word_embeddings"] = settings["text_config"]["tie_word_embeddings"] = tied
    settings["text_config"]["max_position_embeddings"] = 2048
    config = getattr(transformers, config_class)(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype)
        families.spread(model)
    return model.eval()


def _ids(kind: str, tokenizer: Tokenizer) -> dict[int, int]:
    """From the ids that `family_configs` uses to those of the folder's tokenizer."""
    family = FAMILIES[kind]
    image = tokenizer.token_to_id(family.soft or family.placeholder)
    others = [tokenizer.token_to_id(token) for token in family.tokens]
    spare = [token for token in others if token != image] or [tokenizer.token_to_id("<think>")]
    ids = {family_id: spare[(family_id - 391) % len(spare)] for family_id in range(391, 399)}
    if "<|video_pad|>" in family.tokens:
        ids[391], ids[392], ids[393] = map(
            tokenizer.token_to_id, ("<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
        )
    if "<|video|>" in family.tokens:
        ids[391], ids[392], ids[393] = map(
            tokenizer.token_to_id, ("<|video|>", "<|begin_of_image|>", "<|end_of_image|>")
        )
    return {390: image, 400: tokenizer.get_vocab_size(), **ids}


def _mapped(value: Any, ids: dict[int, int]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(entry, ids) for key, entry in value.items()}
    if isinstance(value, list):
        return [_mapped(entry, ids) for entry in value]
    return ids.get(value, value) if isinstance(value, int) else value


def _change(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **settings}), encoding="utf-8")
