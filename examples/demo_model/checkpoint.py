"""The demo model as an ordinary checkpoint: a shrunken Qwen3-VL, its first weights, and its saved folder."""

import copy
import json
from pathlib import Path

import torch
from tokenizer import make_tokenizer
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PATCH, MERGE = 8, 2
CELL = PATCH * MERGE  # one token of the language model sees CELL x CELL pixels
LEAST_CELLS, MOST_CELLS = 25, 36  # every picture is resized into this range


def config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLConfig:
    token = tokenizer.convert_tokens_to_ids
    vision = {
        "depth": 4, "hidden_size": 192, "intermediate_size": 512, "num_heads": 6, "hidden_act": "gelu",
        "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2, "out_hidden_size": 160,
        "num_position_embeddings": 256, "deepstack_visual_indexes": [1],
    }  # fmt: skip
    rotary = {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True, "rope_theta": 10000.0}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 160, "intermediate_size": 384, "num_hidden_layers": 8,
        "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 32, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": rotary, "bos_token_id": token("<|im_start|>"), "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }  # fmt: skip
    return Qwen3VLConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def new_model(seed: int) -> tuple[Qwen3VLForConditionalGeneration, PreTrainedTokenizerFast]:
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = Qwen3VLForConditionalGeneration(config(tokenizer)).float()
    layers = {"visual": model.config.vision_config.depth, "language_model": model.config.text_config.num_hidden_layers}
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue
        std = 0.05 if "embed_tokens" in name else weight[0].numel() ** -0.5
        if (
            name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight", "mlp.linear_fc2.weight"))
            and "merger" not in name
        ):
            std /= (2 * layers["visual" if "visual" in name else "language_model"]) ** 0.5
        nn.init.normal_(weight, std=std)
    table = model.model.visual.pos_embed.weight
    table.data.copy_(_smooth_table(*table.shape))
    return model, tokenizer


def _smooth_table(rows: int, width: int) -> Tensor:
    """Position embeddings that begin as random mixtures of slow waves: near places look alike."""
    line = torch.linspace(-1, 1, int(rows**0.5))
    places = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    waves = [wave(places * k) for k in (1, 2, 4) for wave in (torch.sin, torch.cos)]
    return torch.cat(waves, -1) @ torch.randn(12, width) * 0.1


def image_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        min_pixels=LEAST_CELLS * CELL**2,
        max_pixels=MOST_CELLS * CELL**2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
    )


def save(model: Qwen3VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that `from_pretrained` reads, weights in fp16."""
    token = tokenizer.convert_tokens_to_ids
    half = copy.deepcopy(model).half()
    half.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=64,
        eos_token_id=[token("<|im_end|>"), token("<|endoftext|>")],
        pad_token_id=token("<|endoftext|>"),
        bos_token_id=token("<|im_start|>"),
    )
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)
    _amend(
        folder / "preprocessor_config.json",
        image_processor_type="Qwen2VLImageProcessor",
        processor_class="Qwen3VLProcessor",
    )
    _amend(folder / "tokenizer_config.json", processor_class="Qwen3VLProcessor")


def _amend(path: Path, **entries: str) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}, indent=2) + "\n")
