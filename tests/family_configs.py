"""Tiny configs of the families in `families.py`: one function each, registered with its config class.

A function is given the decoder's depth and the tower's width, and returns what the config class takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

IMAGE, VIDEO, START, END, VOCAB = 390, 391, 392, 393, 400

Config = dict[str, Any]
CONFIGS: dict[str, tuple[str, Callable[[int, int], Config]]] = {}

ROPE: Config = {"rope_type": "default", "rope_theta": 10000.0}
MROPE: Config = {**ROPE, "mrope_section": [2, 3, 3]}
IDS: Config = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
GLM_IDS: Config = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "image_start_token_id": START,
    "image_end_token_id": END,
    "video_start_token_id": 394,
    "video_end_token_id": 395,
}
TILE_PINS = [[56, 56], [56, 112], [112, 56], [112, 112]]


def family(name: str, config_class: str) -> Callable[[Callable[[int, int], Config]], Callable[[int, int], Config]]:
    def register(make: Callable[[int, int], Config]) -> Callable[[int, int], Config]:
        CONFIGS[name] = (config_class, make)
        return make

    return register


def text(layers: int, **more: Any) -> Config:
    base = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers, "num_attention_heads": 4}
    ids = {"num_key_value_heads": 2, "vocab_size": VOCAB, "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    return {**base, **ids, "max_position_embeddings": 1024, **more}


def vit(width: int, **more: Any) -> Config:
    base = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 3, "num_attention_heads": 4}
    return {**base, **more}


def native(width: int, **more: Any) -> Config:
    """A Qwen-like tower: packed patches of any picture size."""
    return {"depth": 3, "hidden_size": width, "num_heads": 4, "patch_size": 8, "out_hidden_size": 64, **more}


def siglip(width: int, size: int = 56) -> Config:
    return vit(width, model_type="siglip_vision_model", image_size=size, patch_size=14, vision_use_head=False)


def clip(width: int, size: int = 56) -> Config:
    return vit(width, model_type="clip_vision_model", image_size=size, patch_size=14, projection_dim=64)


def pixtral_tower(width: int) -> Config:
    return vit(width, model_type="pixtral", head_dim=width // 4, patch_size=8, image_size=224, hidden_act="silu")


def qwen3_5_text(layers: int, **more: Any) -> Config:
    """Linear attention in three layers of four."""
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "head_dim": 16}
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    rope = {**MROPE, "mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    return text(layers, layer_types=kinds, rope_parameters=rope, **heads, **sizes, **more)


def sliding(layers: int) -> list[str]:
    return ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)]


@family("qwen2_vl", "Qwen2VLConfig")
def _qwen2_vl(layers: int, width: int) -> Config:
    vision = native(width, embed_dim=width, mlp_ratio=2)
    vision["hidden_size"] = vision.pop("out_hidden_size")
    return {"vision_config": vision, "text_config": text(layers, rope_parameters=MROPE), **IDS}


@family("qwen2_5_vl", "Qwen2_5_VLConfig")
def _qwen2_5_vl(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, window_size=32, fullatt_block_indexes=[1])
    return {"vision_config": vision, "text_config": text(layers, rope_parameters=MROPE), **IDS}


@family("qwen3_vl", "Qwen3VLConfig")
def _qwen3_vl(layers: int, width: int) -> Config:
    more = {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    vision = native(width, intermediate_size=2 * width, **more)
    rope = {**MROPE, "mrope_interleaved": True}
    return {"vision_config": vision, "text_config": text(layers, head_dim=16, rope_parameters=rope), **IDS}


@family("qwen3_5", "Qwen3_5Config")
def _qwen3_5(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, num_position_embeddings=64)
    return {"vision_config": vision, "text_config": qwen3_5_text(layers), **IDS}


@family("gemma3", "Gemma3Config")
def _gemma3(layers: int, width: int) -> Config:
    more = {"query_pre_attn_scalar": 16, "sliding_window": 24, "layer_types": sliding(layers)}
    ids = {"mm_tokens_per_image": 4, "image_token_index": IMAGE}
    return {"vision_config": siglip(width), "text_config": text(layers, head_dim=16, **more), **ids}


@family("gemma4", "Gemma4Config")
def _gemma4(layers: int, width: int) -> Config:
    kinds = [*sliding(layers - 1), "full_attention"]
    heads = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 24, "layer_types": kinds}
    own = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 1}
    vision = vit(width, num_key_value_heads=4, head_dim=width // 4, patch_size=8, pooling_kernel_size=3)
    ids = {"boi_token_id": START, "eoi_token_id": END, "image_token_id": IMAGE, "video_token_id": VIDEO}
    audio = {"boa_token_id": 394, "eoa_token_index": 395, "audio_token_id": 396, "audio_config": None}
    words = text(layers, use_bidirectional_attention="vision", **heads, **own)
    return {"vision_config": {**vision, "position_embedding_size": 64}, "text_config": words, **ids, **audio}


def _idefics3(layers: int, width: int) -> Config:
    words = text(layers, model_type="llama")
    ids = {"scale_factor": 2, "image_token_id": IMAGE, "pad_token_id": 0}
    return {"vision_config": vit(width, image_size=64, patch_size=8), "text_config": words, **ids}


family("idefics3", "Idefics3Config")(_idefics3)
family("smolvlm", "SmolVLMConfig")(_idefics3)


@family("llava", "LlavaConfig")
def _llava(layers: int, width: int) -> Config:
    words = text(layers, model_type="llama")
    return {"vision_config": clip(width), "text_config": words, "image_token_index": IMAGE, "image_seq_length": 16}


@family("llava_next", "LlavaNextConfig")
def _llava_next(layers: int, width: int) -> Config:
    words = text(layers, model_type="mistral", sliding_window=None)
    pins = {"image_grid_pinpoints": TILE_PINS, "image_token_index": IMAGE}
    return {"vision_config": clip(width), "text_config": words, **pins}


@family("llava_onevision", "LlavaOnevisionConfig")
def _llava_onevision(layers: int, width: int) -> Config:
    pins = {"image_grid_pinpoints": TILE_PINS, "image_token_index": IMAGE, "video_token_index": VIDEO}
    return {"vision_config": siglip(width), "text_config": text(layers, model_type="qwen2"), **pins}


@family("internvl", "InternVLConfig")
def _internvl(layers: int, width: int) -> Config:
    vision = vit(width, image_size=[56, 56], patch_size=[14, 14], attention_bias=True)
    return {"vision_config": vision, "text_config": text(layers, model_type="qwen2"), "image_token_id": IMAGE}


@family("mistral3", "Mistral3Config")
def _mistral3(layers: int, width: int) -> Config:
    words = text(layers, model_type="mistral", head_dim=16, sliding_window=None)
    ids = {"image_token_index": IMAGE, "spatial_merge_size": 2}
    return {"vision_config": pixtral_tower(width), "text_config": words, **ids}


@family("pixtral", "LlavaConfig")
def _pixtral(layers: int, width: int) -> Config:
    words = text(layers, model_type="mistral", head_dim=16, sliding_window=None)
    select = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "image_token_index": IMAGE}
    return {"vision_config": pixtral_tower(width), "text_config": words, **select}


@family("paligemma", "PaliGemmaConfig")
def _paligemma(layers: int, width: int) -> Config:
    words = text(layers, model_type="gemma", head_dim=16)
    ids = {"projection_dim": 64, "image_token_index": IMAGE}
    return {"vision_config": siglip(width), "text_config": words, **ids}


@family("glm4v", "Glm4vConfig")
def _glm4v(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, image_size=64)
    rope = {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    return {"vision_config": vision, "text_config": text(layers, rope_parameters=rope), **GLM_IDS}


@family("mllama", "MllamaConfig")
def _mllama(layers: int, width: int) -> Config:
    words = text(layers, cross_attention_layers=[1, 3], rope_parameters=ROPE)
    vision = vit(width, num_global_layers=1, image_size=56, patch_size=14, intermediate_layers_indices=[0, 2])
    vision["attention_heads"] = vision.pop("num_attention_heads")
    vision["vision_output_dim"] = 3 * width
    return {"vision_config": vision, "text_config": words, "image_token_index": IMAGE}


@family("minicpmv4_6", "MiniCPMV4_6Config")
def _minicpmv4_6(layers: int, width: int) -> Config:
    vision = vit(width, image_size=112, patch_size=8)
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO, "insert_layer_id": 1}
    return {"vision_config": vision, "text_config": qwen3_5_text(layers, model_type="qwen3_5_text"), **ids}


@family("qwen3_vl_moe", "Qwen3VLMoeConfig")
def _qwen3_vl_moe(layers: int, width: int) -> Config:
    config = _qwen3_vl(layers, width)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    config["text_config"] |= experts
    return config
