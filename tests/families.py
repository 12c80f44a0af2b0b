"""Tiny random vision-language models, one per family, and what their processors would give for one picture.

Used by every test that has to hold for many architectures. Knows nothing of mmswap.
`build(name)` makes the model, `inputs(name, model, size=2)` a prompt with a picture, `image_inputs` the picture alone.
Weights are far wider spread than a fresh initialisation, so that a picture, a bias or a gate that gets lost changes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, PreTrainedModel

IMAGE, VIDEO, START, END, VOCAB = 390, 391, 392, 393, 400

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = dict(_ROPE, mrope_section=[2, 3, 3])
_IDS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)
_TILE_PINS = [[56, 56], [56, 112], [112, 56], [112, 112]]


def _text(layers: int, **more: Any) -> dict[str, Any]:
    base = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=layers, num_attention_heads=4)
    ids = dict(num_key_value_heads=2, vocab_size=VOCAB, eos_token_id=1, bos_token_id=2, pad_token_id=0)
    return {**base, **ids, "max_position_embeddings": 1024, **more}


def _vit(width: int, **more: Any) -> dict[str, Any]:
    return {**dict(hidden_size=width, intermediate_size=2 * width, num_hidden_layers=3, num_attention_heads=4), **more}


def _native(width: int, **more: Any) -> dict[str, Any]:
    """A Qwen-like tower: packed patches of any picture size."""
    return {**dict(depth=3, hidden_size=width, num_heads=4, patch_size=8, out_hidden_size=64), **more}


def _siglip(width: int, size: int = 56) -> dict[str, Any]:
    return _vit(width, model_type="siglip_vision_model", image_size=size, patch_size=14, vision_use_head=False)


def _clip(width: int, size: int = 56) -> dict[str, Any]:
    return _vit(width, model_type="clip_vision_model", image_size=size, patch_size=14, projection_dim=64)


def _pixtral(width: int) -> dict[str, Any]:
    return _vit(width, model_type="pixtral", head_dim=width // 4, patch_size=8, image_size=224, hidden_act="silu")


def _qwen3_5_text(layers: int, **more: Any) -> dict[str, Any]:
    linear = dict(linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4)
    kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    rope = dict(_MROPE, mrope_interleaved=True, mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
    return _text(layers, head_dim=16, layer_types=kinds, rope_parameters=rope, **linear, **more)


def _config(name: str, layers: int, width: int) -> dict[str, Any]:
    """The keyword arguments of the family's config class."""
    qwen3_rope = dict(_MROPE, mrope_interleaved=True)
    if name == "qwen2_vl":
        vision = _native(width, embed_dim=width, mlp_ratio=2)
        vision["hidden_size"] = vision.pop("out_hidden_size")
        return dict(vision_config=vision, text_config=_text(layers, rope_parameters=_MROPE), **_IDS)
    if name == "qwen2_5_vl":
        vision = _native(width, intermediate_size=2 * width, window_size=32, fullatt_block_indexes=[1])
        return dict(vision_config=vision, text_config=_text(layers, rope_parameters=_MROPE), **_IDS)
    if name in ("qwen3_vl", "qwen3_vl_moe"):
        vision = _native(
            width, intermediate_size=2 * width, num_position_embeddings=64, deepstack_visual_indexes=[0, 1]
        )
        text = _text(layers, head_dim=16, rope_parameters=qwen3_rope)
        if name == "qwen3_vl_moe":
            text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1)
        return dict(vision_config=vision, text_config=text, **_IDS)
    if name == "qwen3_5":
        vision = _native(width, intermediate_size=2 * width, num_position_embeddings=64)
        return dict(vision_config=vision, text_config=_qwen3_5_text(layers), **_IDS)
    if name == "glm4v":
        vision = _native(width, intermediate_size=2 * width, image_size=64)
        text = _text(layers, rope_parameters=dict(_ROPE, mrope_section=[2, 1, 1], partial_rotary_factor=0.5))
        ids = dict(image_token_id=IMAGE, video_token_id=VIDEO, image_start_token_id=START, image_end_token_id=END)
        return dict(vision_config=vision, text_config=text, **ids, video_start_token_id=394, video_end_token_id=395)
    if name == "gemma3":
        kinds = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)]
        text = _text(layers, head_dim=16, query_pre_attn_scalar=16, sliding_window=24, layer_types=kinds)
        return dict(vision_config=_siglip(width), text_config=text, mm_tokens_per_image=4, image_token_index=IMAGE)
    if name == "gemma4":
        kinds = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers - 1)] + [
            "full_attention"
        ]
        more = dict(head_dim=16, global_head_dim=32, sliding_window=24, hidden_size_per_layer_input=8)
        text = _text(layers, layer_types=kinds, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=1, **more)
        text["use_bidirectional_attention"] = "vision"
        vision = _vit(width, num_key_value_heads=4, head_dim=width // 4, patch_size=8, pooling_kernel_size=3)
        ids = dict(boi_token_id=START, eoi_token_id=END, image_token_id=IMAGE, video_token_id=VIDEO)
        audio = dict(boa_token_id=394, eoa_token_index=395, audio_token_id=396)
        vision["position_embedding_size"] = 64
        return dict(vision_config=vision, text_config=text, audio_config=None, **ids, **audio)
    if name in ("idefics3", "smolvlm"):
        vision = _vit(width, image_size=64, patch_size=8)
        text = _text(layers, model_type="llama")
        return dict(vision_config=vision, text_config=text, scale_factor=2, image_token_id=IMAGE, pad_token_id=0)
    if name == "llava":
        text = _text(layers, model_type="llama")
        return dict(vision_config=_clip(width), text_config=text, image_token_index=IMAGE, image_seq_length=16)
    if name == "llava_next":
        text = _text(layers, model_type="mistral", sliding_window=None)
        pins = dict(image_grid_pinpoints=_TILE_PINS, image_token_index=IMAGE)
        return dict(vision_config=_clip(width), text_config=text, **pins)
    if name == "llava_onevision":
        pins = dict(image_grid_pinpoints=_TILE_PINS, image_token_index=IMAGE, video_token_index=VIDEO)
        return dict(vision_config=_siglip(width), text_config=_text(layers, model_type="qwen2"), **pins)
    if name == "internvl":
        vision = _vit(width, image_size=[56, 56], patch_size=[14, 14], attention_bias=True)
        return dict(vision_config=vision, text_config=_text(layers, model_type="qwen2"), image_token_id=IMAGE)
    if name == "mistral3":
        text = _text(layers, model_type="mistral", head_dim=16, sliding_window=None)
        return dict(vision_config=_pixtral(width), text_config=text, image_token_index=IMAGE, spatial_merge_size=2)
    if name == "pixtral":
        text = _text(layers, model_type="mistral", head_dim=16, sliding_window=None)
        select = dict(vision_feature_layer=-1, vision_feature_select_strategy="full", image_token_index=IMAGE)
        return dict(vision_config=_pixtral(width), text_config=text, **select)
    if name == "paligemma":
        text = _text(layers, model_type="gemma", head_dim=16)
        return dict(vision_config=_siglip(width), text_config=text, projection_dim=64, image_token_index=IMAGE)
    if name == "mllama":
        text = _text(layers, cross_attention_layers=[1, 3], rope_parameters=_ROPE)
        vision = _vit(width, num_global_layers=1, image_size=56, patch_size=14, intermediate_layers_indices=[0, 2])
        vision["attention_heads"] = vision.pop("num_attention_heads")
        vision["vision_output_dim"] = 3 * width
        return dict(vision_config=vision, text_config=text, image_token_index=IMAGE)
    if name == "minicpmv4_6":
        vision = _vit(width, image_size=112, patch_size=8)
        ids = dict(image_token_id=IMAGE, video_token_id=VIDEO, insert_layer_id=1)
        return dict(vision_config=vision, text_config=_qwen3_5_text(layers, model_type="qwen3_5_text"), **ids)
    raise KeyError(name)


_CONFIG_CLASS = {
    "qwen2_vl": "Qwen2VLConfig",
    "qwen2_5_vl": "Qwen2_5_VLConfig",
    "qwen3_vl": "Qwen3VLConfig",
    "qwen3_5": "Qwen3_5Config",
    "gemma3": "Gemma3Config",
    "gemma4": "Gemma4Config",
    "idefics3": "Idefics3Config",
    "smolvlm": "SmolVLMConfig",
    "llava": "LlavaConfig",
    "llava_next": "LlavaNextConfig",
    "llava_onevision": "LlavaOnevisionConfig",
    "internvl": "InternVLConfig",
    "mistral3": "Mistral3Config",
    "pixtral": "LlavaConfig",
    "paligemma": "PaliGemmaConfig",
    "glm4v": "Glm4vConfig",
    "mllama": "MllamaConfig",
    "minicpmv4_6": "MiniCPMV4_6Config",
    "qwen3_vl_moe": "Qwen3VLMoeConfig",
}
FAMILIES: tuple[str, ...] = tuple(_CONFIG_CLASS)


def build(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    layers: int = 4,
    seed: int = 0,
    width: int = 64,
) -> PreTrainedModel:
    """A tiny random model of the family, in eval mode and without gradients; `width` is the tower's."""
    config = getattr(transformers, _CONFIG_CLASS[name])(**_config(name, layers, width))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=attention)
        _spread(model)
    return model.to(dtype).eval().requires_grad_(False)


def _spread(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=1.2 / parameter[0].numel() ** 0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))


def image_inputs(name: str, model: PreTrainedModel, *, size: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """What the family's processor gives for a picture: `size` 1, 2 or 3 is small, middle, large (or 1, 2, 3 tiles)."""
    pixels = torch.Generator().manual_seed(seed)
    vision = model.config.vision_config

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=pixels) * 2 - 1

    rows, columns = {1: (4, 4), 2: (6, 8), 3: (12, 8)}[size]
    if name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "qwen3_vl_moe"):
        patch = 3 * vision.temporal_patch_size * vision.patch_size**2
        return dict(pixel_values=draw(rows * columns, patch), image_grid_thw=torch.tensor([[1, rows, columns]]))
    if name in ("gemma3", "llava"):
        return dict(pixel_values=draw(size, 3, 56, 56))
    if name == "paligemma":
        return dict(pixel_values=draw(size, 3, 56, 56))
    if name == "internvl":
        return dict(pixel_values=draw(size, 3, 56, 56))
    if name in ("idefics3", "smolvlm"):
        mask = torch.ones(1, size, 64, 64, dtype=torch.bool)
        mask[0, -1, 48:] = False
        return dict(pixel_values=draw(1, size, 3, 64, 64), pixel_attention_mask=mask)
    if name in ("llava_next", "llava_onevision"):
        height, width = {1: (50, 40), 2: (50, 100), 3: (100, 90)}[size]
        tiles = {1: 2, 2: 3, 3: 5}[size]
        return dict(pixel_values=draw(1, tiles, 3, 56, 56), image_sizes=torch.tensor([[height, width]]))
    if name in ("mistral3", "pixtral"):
        edge = vision.patch_size
        sizes = torch.tensor([[rows * edge, columns * edge]])
        return dict(pixel_values=draw(1, 3, rows * edge, columns * edge), image_sizes=sizes)
    if name == "gemma4":
        rows, columns = {1: (3, 6), 2: (6, 6), 3: (6, 9)}[size]
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack([x.flatten(), y.flatten()], -1)[None]
        return dict(pixel_values=draw(1, rows * columns, 3 * vision.patch_size**2), image_position_ids=places)
    if name == "mllama":
        shape = (1, 1, 4, 3, vision.image_size, vision.image_size)
        tiles = torch.tensor([[[1] * (1 << (size - 1)) + [0] * (4 - (1 << (size - 1)))]])
        kind = torch.tensor([[{1: 1, 2: 2, 3: 4}[size]]])
        return dict(pixel_values=draw(*shape), aspect_ratio_ids=kind, aspect_ratio_mask=tiles)
    if name == "minicpmv4_6":
        rows, columns = {1: (4, 4), 2: (4, 8), 3: (8, 12)}[size]
        edge = vision.patch_size
        sizes = torch.tensor([[rows, columns]], dtype=torch.int32)
        return dict(pixel_values=draw(1, 3, edge, rows * columns * edge), target_sizes=sizes)
    raise KeyError(name)


def image_tokens(name: str, model: PreTrainedModel, picture: Mapping[str, Tensor]) -> int:
    """How many placeholders the picture takes in the prompt: the rows of its features."""
    if name == "mllama":
        return 1
    with torch.no_grad():
        rows = model.get_image_features(**picture, return_dict=True).pooler_output
    return sum(part.reshape(-1, part.shape[-1]).shape[0] for part in rows)


def inputs(
    name: str, model: PreTrainedModel, *, size: int = 2, text: int = 12, seed: int = 0, picture: bool = True
) -> dict[str, Tensor]:
    """A prompt of `text` words, with the picture in its middle; `picture=False` leaves the picture out."""
    words = torch.randint(3, 380, (1, text), generator=torch.Generator().manual_seed(1000 + seed))
    if not picture:
        return dict(input_ids=words, attention_mask=torch.ones_like(words))
    shown = image_inputs(name, model, size=size, seed=seed)
    count = image_tokens(name, model, shown)
    block = torch.full((1, count), IMAGE)
    before, after = words[:, : text // 2], words[:, text // 2 :]
    around = [torch.tensor([[START]]), block, torch.tensor([[END]])]
    ids = torch.cat([before, *around, after], dim=1)
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), **shown)
    kinds = (ids == IMAGE).long()
    if name == "gemma3":
        given["token_type_ids"] = kinds
    elif name == "paligemma":
        given["token_type_ids"] = torch.zeros_like(ids)
    elif name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "gemma4", "qwen3_vl_moe"):
        given["mm_token_type_ids"] = kinds
    if name == "mllama":
        mask = torch.zeros(1, ids.shape[1], 1, 4, dtype=torch.long)
        mask[:, before.shape[1] + 1 :, :, : 1 << (size - 1)] = 1
        given["cross_attention_mask"] = mask
    return given
