"""Tiny checkpoint folders of real families: image processor, a small trained tokenizer, processor class, config.

`make_folder(path, family)` writes what `load_processor` reads (no weights); `FAMILIES` says which there are, with the
rule of each: how many tokens and patches a picture of a given size must have, stated here independently of mmswap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. What colour is the circle in the picture?",
    "system user assistant model developer tool You are a helpful and terse assistant. Use bullets.",
    "It is red, green, blue or yellow; describe the picture. 0 1 2 3 4 5 6 7 8 9 think tool call end of turn",
] * 4


def byte_level(special: list[str], plain: tuple[str, ...] = ()) -> Tokenizer:
    """A small tokenizer of the Qwen and Llama 3 kind: byte-level BPE; `plain` are added but not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer


def metaspace(special: list[str], plain: tuple[str, ...] = (), scheme: str = "first") -> Tokenizer:
    """A small tokenizer of the Llama 2 and Gemma kind: metaspace BPE with byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if scheme != "never" else [])
    )
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=560, special_tokens=pieces, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = []  # the byte pieces are ordinary vocabulary
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}IMAGE{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Family:
    """What is needed to write a folder, and the rule for a picture of width x height."""

    model_type: str
    processor: str
    image_processor: str
    tokens: list[str]
    placeholder: str
    rule: Callable[[int, int], tuple[int, int]] | None  # (width, height) -> (tokens, patches)
    settings: dict[str, Any] = field(default_factory=dict)  # of the image processor
    arguments: dict[str, Any] = field(default_factory=dict)  # of the processor
    named: dict[str, str] = field(default_factory=dict)  # extra named tokens of the tokenizer
    patch: int = 14
    marks: str = ""  # what the template writes for a picture, if more than the placeholder
    pair: Callable[[int, int], tuple[int, int]] | None = None  # the rule where a prompt holds several pictures
    soft: str = ""  # the token that is repeated, if it is not the placeholder


def smart_resize(width: int, height: int, factor: int, low: int, high: int) -> tuple[int, int]:
    """The Qwen rule, stated once more."""
    rows, cols = round(height / factor) * factor, round(width / factor) * factor
    if rows * cols > high:
        beta = math.sqrt(width * height / high)
        rows = max(factor, math.floor(height / beta / factor) * factor)
        cols = max(factor, math.floor(width / beta / factor) * factor)
    elif rows * cols < low:
        beta = math.sqrt(low / (width * height))
        rows, cols = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return cols, rows


def qwen_rule(patch: int, low: int, high: int) -> Callable[[int, int], tuple[int, int]]:
    def rule(width: int, height: int) -> tuple[int, int]:
        cols, rows = smart_resize(width, height, 2 * patch, low, high)
        patches = (cols // patch) * (rows // patch)
        return patches // 4, patches

    return rule


def glm_rule(width: int, height: int) -> tuple[int, int]:
    """Qwen's rule, after a side below one cell has been scaled up to it; both frames count towards the bounds."""
    scale = max(28 / height, 28 / width, 1)
    if min(width, height) < 28:
        width, height = int(width * scale), int(height * scale)
    return qwen_rule(14, 112 * 56, 28 * 28 * 7500)(width, height)


def fixed(tokens: int, patches: int) -> Callable[[int, int], tuple[int, int]]:
    return lambda width, height: (tokens, patches)


def pixtral_rule(width: int, height: int) -> tuple[int, int]:
    """Longest side at most 112, then whole patches of 14."""
    ratio = max(width / 112, height / 112)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    cols, rows = math.ceil(width / 14), math.ceil(height / 14)
    return cols * rows, cols * rows


def idefics_rule(width: int, height: int) -> tuple[int, int]:
    """Longest side to 112, both sides up to whole tiles of 56; one overview more; 16 patches and 4 tokens a tile."""
    ratio = width / height
    cols = 2 if ratio >= 1 else max(1, math.ceil(int(112 * ratio) / 56))
    rows = 2 if ratio < 1 else max(1, math.ceil(int(112 / ratio) / 56))
    tiles = cols * rows + 1
    return 4 * tiles, 16 * tiles


PINS = [[56, 56], [56, 112], [112, 56], [112, 112]]


def anyres_rule(width: int, height: int) -> tuple[int, int]:
    """LLaVA-NeXT and OneVision: the best of four canvases in tiles of 56, padding cut away, plus one overview."""

    def fitness(pin: list[int]) -> tuple[int, int]:
        scale = min(pin[1] / width, pin[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return used, used - pin[0] * pin[1]

    rows, cols = max(PINS, key=fitness)
    tiles, rows, cols = (rows // 56) * (cols // 56), rows // 14, cols // 14
    if width / height > cols / rows:
        rows -= (rows - int(round(height * (cols / width), 7))) // 2 * 2
    else:
        cols -= (cols - int(round(width * (rows / height), 7))) // 2 * 2
    return rows * cols + rows + 16, 16 * (tiles + 1)


def gemma4_rule(width: int, height: int) -> tuple[int, int]:
    """As many patches of 16 as 70 soft tokens of 3x3 allow, whole soft tokens on both sides."""
    scale = math.sqrt(70 * 48 * 48 / (width * height))
    cols, rows = int(width * scale / 48), int(height * scale / 48)
    if 0 in (cols, rows):
        cols, rows = (min(width // height, 70), 1) if rows == 0 else (1, min(height // width, 70))
    return cols * rows, 9 * cols * rows


VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
ROWS = [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
QWEN_MARKS = "<|vision_start|><|image_pad|><|vision_end|>"
IDEFICS_SIZES = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}

FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(
        "qwen2_vl", "Qwen2VLProcessor", "Qwen2VLImageProcessor", VISION, "<|image_pad|>",
        qwen_rule(14, 56 * 56, 28 * 28 * 1280), marks=QWEN_MARKS,
    ),
    "qwen3_vl": Family(
        "qwen3_vl", "Qwen3VLProcessor", "Qwen2VLImageProcessor", VISION, "<|image_pad|>",
        qwen_rule(16, 65536, 262144), marks=QWEN_MARKS, patch=16,
        settings={"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 262144}},
    ),
    "gemma3": Family(
        "gemma3", "Gemma3Processor", "Gemma3ImageProcessor", ["<start_of_image>", "<end_of_image>", "<soft>"],
        "<start_of_image>", fixed(4, 16), settings={"size": {"height": 56, "width": 56}}, soft="<soft>",
        arguments={"image_seq_length": 4},
        named={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<soft>"},
    ),
    "idefics3": Family(
        "idefics3", "Idefics3Processor", "Idefics3ImageProcessor",
        ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *ROWS], "<image>", idefics_rule,
        settings=IDEFICS_SIZES, arguments={"image_seq_len": 4},
    ),
    "smolvlm": Family(
        "smolvlm", "SmolVLMProcessor", "SmolVLMImageProcessor",
        ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *ROWS], "<image>", idefics_rule,
        settings=IDEFICS_SIZES, arguments={"image_seq_len": 4},
    ),
    "llava": Family(
        "llava", "LlavaProcessor", "CLIPImageProcessor", ["<image>"], "<image>", fixed(16, 16),
        settings={"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
        arguments={"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "paligemma": Family(
        "paligemma", "PaliGemmaProcessor", "SiglipImageProcessor", ["<image>"], "<image>", fixed(16, 16),
        settings={"size": {"height": 56, "width": 56}, "image_seq_length": 16},
    ),
    "pixtral": Family(
        "mistral3", "PixtralProcessor", "PixtralImageProcessor", ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], "[IMG]",
        pixtral_rule, settings={"size": {"longest_edge": 112}, "patch_size": 14}, arguments={"patch_size": 14},
    ),
    "llava_next": Family(
        "llava_next", "LlavaNextProcessor", "LlavaNextImageProcessor", ["<image>"], "<image>", anyres_rule,
        settings={
            "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}, "image_grid_pinpoints": PINS
        },
        arguments={"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "llava_onevision": Family(
        "llava_onevision", "LlavaOnevisionProcessor", "LlavaOnevisionImageProcessor", ["<image>", "<video>"],
        "<image>", anyres_rule, pair=fixed(17, 16),
        settings={"size": {"height": 56, "width": 56}, "image_grid_pinpoints": PINS},
        arguments={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "internvl": Family(
        "internvl", "InternVLProcessor", "GotOcr2ImageProcessor", ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"],
        "<IMG_CONTEXT>", None, settings={"size": {"height": 56, "width": 56}, "max_patches": 4},
        arguments={"image_seq_length": 4},
        named={
            "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "glm4v": Family(
        "glm4v", "Glm4vProcessor", "Glm4vImageProcessor",
        ["<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"], "<|image|>",
        glm_rule, marks="<|begin_of_image|><|image|><|end_of_image|>",
    ),
    "gemma4": Family(
        "gemma4", "Gemma4Processor", "Gemma4ImageProcessor",
        ["<|image|>", "<|image>", "<image|>", "<|audio|>", "<|audio>", "<audio|>"], "<|image|>", gemma4_rule,
        settings={"max_soft_tokens": 70}, patch=16,
        named={
            "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
            "boa_token": "<|audio>", "eoa_token": "<audio|>",
        },
    ),
    "minicpmv4_6": Family(
        "minicpmv4_6", "MiniCPMV4_6Processor", "MiniCPMV4_6ImageProcessor",
        ["<unit>", "<clip>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"], "<unit>",
        None, settings={"scale_resolution": 112, "max_slice_nums": 4},
        named={
            "image_token": "<unit>", "video_token": "<clip>", "image_start_token": "<image>",
            "image_end_token": "</image>", "slice_start_token": "<slice>", "slice_end_token": "</slice>",
            "image_id_start_token": "<image_id>", "image_id_end_token": "</image_id>",
        },
    ),
    "got_ocr2": Family(
        "got_ocr2", "GotOcr2Processor", "GotOcr2ImageProcessor", ["<imgpad>", "<img>", "</img>"], "<imgpad>",
        fixed(256, 16), settings={"size": {"height": 56, "width": 56}}, marks="<img><imgpad></img>",
    ),
    "mllama": Family(
        "mllama", "MllamaProcessor", "MllamaImageProcessor", ["<|image|>", "<|python_tag|>"], "<|image|>",
        fixed(1, 64), settings={"size": {"height": 56, "width": 56}, "max_image_tiles": 4},
    ),
}  # fmt: skip


def make_folder(path: Path, name: str, *, tokenizer: Tokenizer | None = None, template: str | None = CHATML) -> Path:
    """Write the folder of a family and return it."""
    family = FAMILIES[name]
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_level([*CHAT_TOKENS, *family.tokens], ("<think>", "</think>", "<tool_call>"))
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>", "extra_special_tokens": family.named, "model_max_length": 100000,
    }  # fmt: skip
    soft = family.soft or family.placeholder
    config = {
        "model_type": family.model_type,
        "image_token_id": tokenizer.token_to_id(soft),
        "vision_config": {"patch_size": family.patch},
    }
    _write(path / "tokenizer_config.json", settings)
    _write(path / "preprocessor_config.json", {"image_processor_type": family.image_processor, **family.settings})
    _write(path / "processor_config.json", {"processor_class": family.processor, **family.arguments})
    _write(path / "config.json", config)
    if template is not None:
        text = template.replace("IMAGE", family.marks or family.placeholder)
        (path / "chat_template.jinja").write_text(text, encoding="utf-8")
    return path


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
