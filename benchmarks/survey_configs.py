"""A small config of every image-text-to-text architecture of transformers, made by rules; a table where rules end.

`config_of("llava")`: the tiny one of the tests where there is one, else the class's defaults with the language model
cut to a few layers. Everything is built on meta, so that widths may stay what they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import held_out_configs  # noqa: F401  (registers its families)
from family_configs import CONFIGS

LAYERS = 4
IMAGE = 390
_DEPTHS = ("num_hidden_layers", "num_layers", "decoder_layers", "encoder_layers", "n_layer", "n_layers")
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SIGLIP = {"model_type": "siglip_vision_model", "image_size": 896, "patch_size": 14}
_GEMMA_TILES = {"vision_config": _SIGLIP}

# What a class's own defaults lack, or hold in a form in which the model cannot be built or be shown a picture.
SPECIAL: dict[str, dict[str, Any]] = {
    "aria": {"vision_config": {"model_type": "idefics3_vision", "image_size": 980, "patch_size": 14}},
    "chameleon": {"vocabulary_map": {"<image>": IMAGE, **{f"IMGIMG{'ABCDEFGHIJ'[i]}Z": i for i in range(10)}}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense"] + ["sparse"] * 11},
        "vision_config": {"encoder_config": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}},
    },
    "diffusion_gemma": {"text_config": {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}},
    "emu3": {"vocabulary_map": {"<image>": IMAGE, "<|extra_200|>": 391, "<|visual token 000000|>": 392}},
    "granite4_vision": {
        "downsample_rate": "4/8",
        "vision_feature_select_strategy": "full",
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 16},
        "deepstack_layer_map": [[-1, 0]],
        "image_grid_pinpoints": [[384, 384], [384, 768]],
    },
    "llama4": {
        "vision_config": {
            "hidden_size": 1408,
            "num_attention_heads": 16,
            "projector_input_dim": 4096,
            "projector_output_dim": 4096,
            "vision_output_dim": 4096,
        }
    },
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "qwen4_exp": {
        "text_config": {
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 256,
            "indexer_budget": 64,
            "indexer_compress_ratio": 4,
        }
    },
    "shieldgemma2": _GEMMA_TILES,
    "t5gemma2": {"encoder": {"vision_config": _SIGLIP}},
}

_WHOLE = ("gemma4_unified",)  # layers that share what others cached: fewer make no sense


def config_of(model_type: str) -> Any:
    """A config of that architecture of which a model can be built on meta in a moment."""
    for config_class, make in CONFIGS.values() if model_type not in SPECIAL else ():
        kind = getattr(transformers, config_class)
        if kind.model_type == model_type and make(LAYERS, 64).get("vision_config", {}).get("model_type") != "pixtral":
            return kind(**make(LAYERS, 64))
    config = CONFIG_MAPPING[model_type](**SPECIAL.get(model_type, {}))
    _complete(config)
    if model_type not in _WHOLE:
        _cut(config)
    return config


def _complete(config: Any) -> None:
    """Parts and placeholders that default to nothing, without which there is no tower or no picture."""
    if getattr(config, "vision_config", 0) is None:
        config.vision_config = config.sub_configs["vision_config"]()
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, 0) is None:
            setattr(config, name, IMAGE)


def _cut(config: Any) -> None:
    """No more than a few layers in whatever is no tower."""
    for name in _DEPTHS:
        if isinstance(depth := getattr(config, name, None), int) and depth > LAYERS:
            setattr(config, name, LAYERS)
    for name, part in list(vars(config).items()):
        if isinstance(part, PreTrainedConfig) and not any(
            word in name for word in ("vision", "image", "vq", "encoder")
        ):
            _cut(part)
