"""Put questions to a saved checkpoint with nothing but transformers: tokenizer, image processor and `generate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Message = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """A chat and the pictures that its messages mention, in order."""

    messages: list[Message]
    pictures: list[Image.Image]


def question(text: str, picture: Image.Image | None = None) -> Turn:
    shown = [] if picture is None else [{"type": "image"}]
    return Turn(
        [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}], [] if picture is None else [picture]
    )


class Chat:
    def __init__(self, folder: Path | str):
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.look = Qwen2VLImageProcessorPil.from_pretrained(folder)

    @torch.inference_mode()
    def answer(self, turns: list[Turn]) -> list[str]:
        """Greedy answers, all turns in one left-padded batch."""
        pictures = [picture for turn in turns for picture in turn.pictures]
        seen = dict(self.look(images=pictures, return_tensors="pt")) if pictures else {}
        tokens = iter((seen["image_grid_thw"].prod(1) // self.look.merge_size**2).tolist() if pictures else [])
        texts = [self._expand(turn, tokens) for turn in turns]
        inputs = self.tokenizer(
            texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False
        )
        if pictures:
            seen["mm_token_type_ids"] = (inputs["input_ids"] == self.model.config.image_token_id).int()
        out = self.model.generate(**inputs, **seen)
        return self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    def _expand(self, turn: Turn, tokens: Any) -> str:
        """The prompt, with one placeholder per token of each picture."""
        text = self.tokenizer.apply_chat_template(turn.messages, add_generation_prompt=True, tokenize=False)
        first, *rest = text.split("<|image_pad|>")
        return first + "".join("<|image_pad|>" * next(tokens) + part for part in rest)
