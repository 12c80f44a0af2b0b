"""Tiny random vision-language models, one per family, and what their processors would give for one picture.

Used by every test that has to hold for many architectures. Knows nothing of mmswap.
`build(name)` makes the model, `inputs(name, model, size=2)` a prompt with a picture, `image_inputs` the picture alone.
Weights are spread far wider than a fresh initialisation: a picture, a bias or a gate that gets lost changes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
import transformers
from family_configs import CONFIGS, END, IMAGE, START
from family_pictures import PICTURES
from held_out_configs import HELD_OUT
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, PreTrainedModel

__all__ = ["FAMILIES", "HELD_OUT", "IMAGE", "build", "image_inputs", "image_tokens", "inputs", "shared", "spread"]

torch.set_num_threads(1)  # threads that wait for each other cost such small models several times what they gain

FAMILIES: tuple[str, ...] = tuple(name for name in CONFIGS if name not in HELD_OUT)

OWN_FORWARD = {  # family -> why it does not decode part by part
    "gemma4": "its layers have layer_scalar beside their parts",
    "mllama": "its layers did not run once each in their order",
    "blip_2": "does not take this prompt",
    "florence2": "it is an encoder and a decoder",
}

_MM_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "gemma4", "qwen3_vl_moe")
_EAGER_ONLY = ("got_ocr2",)
_MM_TYPES += ("glm46v", "glm4v_moe", "qwen3_5_moe", "paddleocr_vl", "minicpmv4_7")


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
    config_class, make = CONFIGS[name]
    config = getattr(transformers, config_class)(**make(layers, width))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind = "eager" if name in _EAGER_ONLY else attention
        model = AutoModelForImageTextToText.from_config(config, attn_implementation=kind, dtype=dtype)
        spread(model)
    return model.eval().requires_grad_(False)


@cache
def shared(name: str) -> PreTrainedModel:
    """The default model of a family, built once in a test session: for tests that leave it as it was."""
    return build(name)


def spread(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=1.2 / parameter[0].numel() ** 0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))


def image_inputs(name: str, model: PreTrainedModel, *, size: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """What the family's processor gives for a picture: `size` 1, 2 or 3 is small, middle, large (or 1, 2, 3 tiles)."""
    pixels = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=pixels) * 2 - 1

    return PICTURES[name](model.config.vision_config, size, draw)


def image_tokens(name: str, model: PreTrainedModel, picture: Mapping[str, Tensor]) -> int:
    """How many placeholders the picture takes in the prompt: the rows of its features."""
    if name == "mllama":
        return 1
    owner = model if hasattr(model, "get_image_features") else model.model
    with torch.no_grad():
        rows = owner.get_image_features(**picture, return_dict=True).pooler_output
    return sum(part.reshape(-1, part.shape[-1]).shape[0] for part in rows)


def inputs(
    name: str, model: PreTrainedModel, *, size: int = 2, text: int = 12, seed: int = 0, picture: bool = True
) -> dict[str, Tensor]:
    """A prompt of `text` words, with the picture in its middle; `picture=False` leaves the picture out."""
    words = torch.randint(3, 380, (1, text), generator=torch.Generator().manual_seed(1000 + seed))
    if not picture:
        return {"input_ids": words, "attention_mask": torch.ones_like(words)}
    shown = image_inputs(name, model, size=size, seed=seed)
    block = torch.full((1, image_tokens(name, model, shown)), IMAGE)
    before, after = words[:, : text // 2], words[:, text // 2 :]
    ids = torch.cat([before, torch.tensor([[START]]), block, torch.tensor([[END]]), after], dim=1)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **shown}
    if name == "gemma3":
        given["token_type_ids"] = (ids == IMAGE).long()
    elif name == "paligemma":
        given["token_type_ids"] = torch.zeros_like(ids)
    elif name in _MM_TYPES:
        given["mm_token_type_ids"] = (ids == IMAGE).long()
    if name == "mllama":
        mask = torch.zeros(1, ids.shape[1], 1, 4, dtype=torch.long)
        mask[:, before.shape[1] + 1 :, :, : 1 << (size - 1)] = 1
        given["cross_attention_mask"] = mask
    return given
