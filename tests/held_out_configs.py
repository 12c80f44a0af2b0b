"""Tiny configs of families that nothing in mmswap was written for; registered like those of `family_configs`."""

from __future__ import annotations

from family_configs import (
    CONFIGS,
    END,
    GLM_IDS,
    IDS,
    IMAGE,
    MROPE,
    ROPE,
    START,
    VIDEO,
    Config,
    clip,
    family,
    native,
    pixtral_tower,
    qwen3_5_text,
    siglip,
    text,
    vit,
)


@family("aya_vision", "AyaVisionConfig")
def _aya_vision(layers: int, width: int) -> Config:
    words = text(layers, model_type="cohere2", sliding_window=24, head_dim=16)
    return {"vision_config": siglip(width), "text_config": words, "image_token_index": IMAGE}


@family("cohere2_vision", "Cohere2VisionConfig")
def _cohere2_vision(layers: int, width: int) -> Config:
    words = text(layers, model_type="cohere2", sliding_window=24, head_dim=16)
    more = {"image_token_id": IMAGE, "alignment_intermediate_size": 128}
    return {"vision_config": siglip(width), "text_config": words, **more}


@family("deepseek_vl", "DeepseekVLConfig")
def _deepseek_vl(layers: int, width: int) -> Config:
    return {"vision_config": siglip(width), "text_config": text(layers, model_type="llama"), "image_token_id": IMAGE}


@family("vipllava", "VipLlavaConfig")
def _vipllava(layers: int, width: int) -> Config:
    more = {"image_token_index": IMAGE, "vision_feature_layers": [-2, -1, 1]}
    return {"vision_config": clip(width), "text_config": text(layers, model_type="llama"), **more}


@family("llava_next_video", "LlavaNextVideoConfig")
def _llava_next_video(layers: int, width: int) -> Config:
    pins = {"image_grid_pinpoints": [[56, 56], [56, 112], [112, 56], [112, 112]]}
    ids = {"image_token_index": IMAGE, "video_token_index": VIDEO}
    return {"vision_config": clip(width), "text_config": text(layers, model_type="llama"), **pins, **ids}


@family("video_llava", "VideoLlavaConfig")
def _video_llava(layers: int, width: int) -> Config:
    ids = {"image_token_index": IMAGE, "video_token_index": VIDEO}
    return {"vision_config": clip(width), "text_config": text(layers, model_type="llama"), **ids}


@family("glm46v", "Glm46VConfig")
def _glm46v(layers: int, width: int) -> Config:
    config = CONFIGS["glm4v"][1](layers, width)
    config["vision_config"]["model_type"], config["text_config"]["model_type"] = "glm4v_vision", "glm4v_text"
    return config


@family("glm4v_moe", "Glm4vMoeConfig")
def _glm4v_moe(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, image_size=64)
    rope = {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    words = text(layers, rope_parameters=rope, head_dim=16, first_k_dense_replace=1, **experts)
    return {"vision_config": vision, "text_config": words, **GLM_IDS}


@family("qwen3_5_moe", "Qwen3_5MoeConfig")
def _qwen3_5_moe(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, num_position_embeddings=64)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    words = qwen3_5_text(layers, shared_expert_intermediate_size=32, **experts)
    return {"vision_config": vision, "text_config": words, **IDS}


@family("minicpmv4_7", "MiniCPMV4_7Config")
def _minicpmv4_7(layers: int, width: int) -> Config:
    return CONFIGS["minicpmv4_6"][1](layers, width)


@family("lfm2_vl", "Lfm2VlConfig")
def _lfm2_vl(layers: int, width: int) -> Config:
    kinds = ["full_attention" if i % 2 else "conv" for i in range(layers)]
    words = text(layers, model_type="lfm2", layer_types=kinds, block_auto_adjust_ff_dim=False)
    vision = vit(width, model_type="siglip2_vision_model", patch_size=8, num_patches=64, vision_use_head=False)
    more = {"image_token_id": IMAGE, "projector_hidden_size": 64}
    return {"vision_config": vision, "text_config": words, **more}


@family("idefics2", "Idefics2Config")
def _idefics2(layers: int, width: int) -> Config:
    words = text(layers, model_type="mistral", sliding_window=None)
    resampler = {"resampler_n_latents": 8, "resampler_depth": 2, "resampler_n_heads": 4, "resampler_head_dim": 16}
    perceiver = {"hidden_size": 64, "num_key_value_heads": 2, **resampler}
    vision = vit(width, image_size=64, patch_size=8)
    return {"vision_config": vision, "text_config": words, "perceiver_config": perceiver, "image_token_id": IMAGE}


@family("got_ocr2", "GotOcr2Config")
def _got_ocr2(layers: int, width: int) -> Config:
    window = {"window_size": 4, "global_attn_indexes": [1], "mlp_dim": 2 * width, "output_channels": 32}
    vision = vit(width, image_size=128, patch_size=8, **window)
    del vision["intermediate_size"]
    return {"vision_config": vision, "text_config": text(layers, model_type="qwen2"), "image_token_index": IMAGE}


@family("aria", "AriaConfig")
def _aria(layers: int, width: int) -> Config:
    words = text(layers, moe_num_experts=4, moe_topk=2, moe_num_shared_experts=1, head_dim=16)
    vision = vit(width, model_type="idefics3_vision", image_size=64, patch_size=8)
    more = {"projector_patch_to_query_dict": {64: 8, 16: 4}, "image_token_index": IMAGE}
    return {"vision_config": vision, "text_config": words, **more}


@family("ovis2", "Ovis2Config")
def _ovis2(layers: int, width: int) -> Config:
    vision = vit(width, image_size=56, patch_size=14, vocab_size=48, hidden_stride=1, num_visual_indicator_tokens=5)
    ids = {"image_token_id": IMAGE, "visual_indicator_token_ids": [394, 395, 396, 397, 398]}
    words = text(layers, model_type="qwen2")
    return {"vision_config": vision, "text_config": words, "hidden_size": 64, "vocab_size": 400, **ids}


@family("paddleocr_vl", "PaddleOCRVLConfig")
def _paddleocr_vl(layers: int, width: int) -> Config:
    words = text(layers, head_dim=16, rope_parameters=MROPE)
    return {"vision_config": vit(width, image_size=64, patch_size=8), "text_config": words, **IDS}


@family("lighton_ocr", "LightOnOcrConfig")
def _lighton_ocr(layers: int, width: int) -> Config:
    words = text(layers, model_type="qwen3", head_dim=16)
    return {"vision_config": pixtral_tower(width), "text_config": words, "image_token_id": IMAGE}


@family("blip_2", "Blip2Config")
def _blip_2(layers: int, width: int) -> Config:
    words = text(layers, model_type="opt", ffn_dim=96, word_embed_proj_dim=64)
    asks = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    vision = vit(width, image_size=56, patch_size=14)
    more = {"qformer_config": {**asks, "encoder_hidden_size": width}, "num_query_tokens": 6}
    return {"vision_config": vision, "text_config": words, "image_token_index": IMAGE, **more}


@family("florence2", "Florence2Config")
def _florence2(layers: int, width: int) -> Config:
    sides = {"encoder_layers": 2, "decoder_layers": layers, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    words = {"model_type": "bart", "d_model": 64, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 400}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 1}
    steps = {"depths": [1, 1], "embed_dim": [width // 2, width], "num_heads": [2, 4], "num_groups": [2, 4]}
    patch = {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    vision = {**steps, **patch, "window_size": 4, "projection_dim": 64, "drop_path_rate": 0.0}
    forced = {"forced_eos_token_id": None, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    return {"vision_config": vision, "text_config": {**words, **sides, **ids, **forced}, "image_token_id": IMAGE, **ids}


@family("qwen2_5_omni_thinker", "Qwen2_5OmniThinkerConfig")
def _qwen2_5_omni_thinker(layers: int, width: int) -> Config:
    vision = native(width, intermediate_size=2 * width, window_size=32, fullatt_block_indexes=[1])
    audio = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "output_dim": 64}
    ids = {"image_token_index": IMAGE, "video_token_index": VIDEO, "audio_token_index": 396}
    more = {"audio_config": {**audio, "num_mel_bins": 16}, "vision_start_token_id": START, "vision_end_token_id": END}
    return {"vision_config": vision, "text_config": text(layers, rope_parameters=MROPE), **ids, **more}


HELD_OUT = tuple(name for name, (_, make) in CONFIGS.items() if make.__module__ == __name__)
