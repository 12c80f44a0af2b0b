"""What reading a prompt takes beside weights and cache: its embeddings and masks, and the largest step of its prefill.

    prompt = Prompt(blueprint, decoder, dry_run, cost)
    prompt.layout.nbytes(...), prompt.step(tokens=32768, chunk=2048)

The arithmetic of a step is `llm/memory.py`'s, as the runtime has it; a decoder with one layer of each kind serves.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmswap.blueprint import Blueprint
from mmswap.errors import ModelError
from mmswap.foresight import Way, to_decoder
from mmswap.llm.division import Ahead
from mmswap.llm.memory import SMALLEST_CHUNK, prefill_cost, query_groups
from mmswap.sizing.cache import Decoder, layout_of
from mmswap.sizing.pictures import Cost
from mmswap.swap.dry_run import DryRun
from mmswap.vision.cache import tensor_bytes

TEXT = 64  # tokens of the question and the template around it


class Prompt:
    """A prompt with pictures, and how it grows to fill a context.

    Attributes:
        layout: of the KV cache. tokens: of the pictures and `TEXT` of words. way: bytes of making the embeddings.

    Raises:
        ModelError: the decoder cannot be run on shapes.
    """

    def __init__(self, blueprint: Blueprint, decoder: Decoder, dry_run: DryRun, cost: Cost) -> None:
        inputs = _inputs(blueprint, cost)
        peak = dry_run.tower_peak(to_decoder, Way(inputs, cost.peak.result, cost.picture.call.entry))
        self.ahead: Ahead = peak.result or Ahead()
        self.way = peak.total if peak.result is not None else 0
        self.tokens = inputs["input_ids"].shape[1]
        layout = layout_of(decoder, self.ahead.extra)
        if layout is None:
            raise ModelError(f"{blueprint.name}: its decoder cannot be run without its weights, so nothing is planned.")
        self.layout = layout
        groups = query_groups(blueprint.config.get_text_config(decoder=True))
        self._cost_of = prefill_cost(decoder.dry_run, "", decoder.kept, groups)
        self._shared = Ahead(extra=self.ahead.extra)
        self._masks = tensor_bytes(dict(self.ahead.masks))
        self._seen = min(tensor_bytes(dict(self.ahead.extra)), max(0, self.ahead.held - self._masks))

    def held(self, tokens: int) -> int:
        """Bytes of what the decoder is given for a prompt of `tokens`; masks grow with their square, and what cross
        attention looks at does not grow.
        """
        plain = self.ahead.held - self._masks - self._seen
        size = max(1, self.ahead.tokens or self.tokens)
        return self._seen + plain * tokens // size + self._masks * tokens * tokens // (size * size)

    def step(self, tokens: int, chunk: int) -> int:
        """Bytes of the last step of a prompt of `tokens` in steps of `chunk`, the cache not counted."""
        largest = self.largest(tokens, chunk)
        whole, slope = self._at(largest)
        return whole + (tokens - largest) * slope

    def largest(self, tokens: int, chunk: int) -> int:
        """Tokens of the largest step: those that look at each other stay together."""
        if self.ahead.whole:
            return tokens
        together = self.ahead.largest(chunk, self.ahead.tokens) if self.ahead.tokens > chunk else 0
        return min(tokens, max(chunk, together))

    def chunks(self, most: int) -> list[int]:
        """The steps that are tried, the largest first, as the runtime halves them."""
        found = [most]
        while found[-1] > SMALLEST_CHUNK:
            found.append(max(SMALLEST_CHUNK, found[-1] // 2))
        return found

    @cache  # noqa: B019 - lives as long as one plan
    def _at(self, chunk: int) -> tuple[int, int]:
        """Bytes of a step of `chunk` tokens with nothing before it, and what each token before it adds."""
        alone = self._cost_of(chunk, chunk, self._shared).peak
        return alone, self._cost_of(chunk, chunk + 1, self._shared).peak - alone


def _inputs(blueprint: Blueprint, cost: Cost) -> dict[str, Any]:
    """What the model's forward is given: the pictures' placeholders, `TEXT` tokens of words, and the usual masks."""
    inputs = dict(cost.picture.inputs)
    ids, kinds = _spelled(inputs["input_ids"], cost.images)
    inputs["input_ids"] = ids
    known = inspect.signature(blueprint.model.forward).parameters
    masks = {"attention_mask": torch.ones_like(ids), "token_type_ids": kinds, "mm_token_type_ids": kinds}
    return inputs | {name: mask for name, mask in masks.items() if name in known and name not in inputs}


def _spelled(marks: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Tokens [1, T] and their kinds (1 in a picture) of placeholders [1, N]: a word between two pictures, as every
    template has one, for pictures that touch are taken for one; and `TEXT` words at the end.
    """
    word = 2 if marks.numel() and int(marks[0, 0]) == 1 else 1
    pictures = list(marks.chunk(images, dim=1)) if marks.shape[1] % images == 0 else [marks]
    words = [torch.full((1, 1), word)] * (len(pictures) - 1) + [torch.full((1, max(1, TEXT - len(pictures) + 1)), word)]
    parts = [part for pair in zip(pictures, words) for part in pair]
    kinds = [torch.full_like(part, kind) for pair in zip(pictures, words) for part, kind in zip(pair, (1, 0))]
    return torch.cat(parts, dim=1), torch.cat(kinds, dim=1)
