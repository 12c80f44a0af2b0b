"""A prompt with pictures as a decoder is given it, found on shapes: embeddings and masks, and the steps of its prefill.

    prompt = Prompt(blueprint, decoder, dry_run, picture, 1, features)
    prompt.given.layout.nbytes(...), prompt.step(chunk=2048)

The arithmetic of a step is `llm/memory.py`'s, as the runtime has it; a decoder with one layer of each kind serves.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from mmswap.blueprint import Blueprint, Picture
from mmswap.errors import ModelError
from mmswap.foresight import Way, to_decoder
from mmswap.llm.costs import prefill_cost, query_groups
from mmswap.llm.division import Ahead
from mmswap.llm.kv.opening import own_layers
from mmswap.llm.kv.shapes import layout_of
from mmswap.sizing.cache import Decoder
from mmswap.sizing.facts import Given
from mmswap.swap.dry_run import DryRun
from mmswap.vision.cache import tensor_bytes

TEXT = 64  # tokens of the question and the template around it


class Prompt:
    """A prompt with pictures of one size on its way into the decoder.

    Attributes:
        ahead: what the decoder is about to be given. given: the figures of that.

    Args:
        decoder: one layer of each kind serves. dry_run: of the whole model. images: how many pictures `picture` is of.
        features: what the tower makes of them, on shapes; None if it was not traced.

    Raises:
        ModelError: the decoder cannot be run on shapes.
    """

    def __init__(
        self, blueprint: Blueprint, decoder: Decoder, dry_run: DryRun, picture: Picture, images: int, features: Any
    ) -> None:
        inputs = _inputs(blueprint, picture, images)
        peak = dry_run.tower_peak(to_decoder, Way(inputs, features, picture.call.entry))
        self.ahead: Ahead = Ahead(unknown=peak.how) if peak.result is None else peak.result
        layout = layout_of(decoder.dry_run, "", own_layers(blueprint.model), decoder.counts, self.ahead.extra)
        if layout is None:
            why = f" ({decoder.dry_run.failed})" if decoder.dry_run.failed else ""
            raise ModelError(f"{blueprint.name}: its decoder cannot be run on shapes{why}, so nothing is planned.")
        groups = query_groups(blueprint.config.get_text_config(decoder=True))
        self._cost_of = prefill_cost(decoder.dry_run, "", decoder.kept, groups)
        self._shared = Ahead(extra=self.ahead.extra)
        masks = tensor_bytes(dict(self.ahead.masks))
        seen = min(tensor_bytes(dict(self.ahead.extra)), max(0, self.ahead.held - masks))
        self.given = Given(
            tokens=max(1, self.ahead.tokens or inputs["input_ids"].shape[1]),
            way=peak.total if peak.result is not None else 0,
            whole=self.ahead.whole,
            words=self.ahead.held - masks - seen,
            masks=masks,
            seen=seen,
            layout=layout,
            unknown=self.ahead.unknown,
        )

    def together(self, chunk: int) -> int:
        """Tokens of the largest step where at most `chunk` are asked for; 0 where the prompt is no longer."""
        return self.ahead.largest(chunk, self.ahead.tokens) if self.ahead.tokens > chunk else 0

    def step(self, chunk: int) -> tuple[int, int]:
        """Bytes of a step of `chunk` tokens with nothing before it, and what each token before it adds."""
        alone = self._cost_of(chunk, chunk, self._shared).peak
        return alone, self._cost_of(chunk, chunk + 1, self._shared).peak - alone


def _inputs(blueprint: Blueprint, picture: Picture, images: int) -> dict[str, Any]:
    """What the model's forward is given: the pictures' placeholders, `TEXT` tokens of words, and the usual masks."""
    inputs = dict(picture.inputs)
    ids, kinds = _spelled(inputs["input_ids"], images)
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
