"""A model by its config alone: built on meta, without weights, card or tokenizer, and asked for a picture of any size.

    blueprint = Blueprint.of("folder")              # or config.json, a hub id in the local cache, a shipped profile
    picture = blueprint.picture(1344, 1008)
    peak = DryRun(blueprint.model).tower_peak(run_tower, picture.call)

Nothing is downloaded, nothing is decoded, and no bytes are taken for weights or pixels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mmswap.errors import MmswapError, ModelError, OptionError, PartsNotFound, told
from mmswap.llm.config_source import find_config
from mmswap.llm.parts import Parts, find_parts
from mmswap.llm.skeleton import build, shortened, stored_dtype
from mmswap.swap.fake import FakeTrace, fake_tensors, fake_twin, is_fake
from mmswap.swap.repeat import repeats_skipped
from mmswap.vision.blank import shapes_of
from mmswap.vision.nominal import nominal_processor, stored_processor
from mmswap.vision.patches import count_patches, patch_side
from mmswap.vision.tower import METHOD, Call, Tower, accepted, find_tower

Encode = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """What a model would be asked for pictures of one size.

    Attributes:
        call: the tower call; float tensors are on meta, integers have their values.
        patches: of all pictures together, padding not counted.
        tokens: of all pictures together, as placeholders in `input_ids`.
        inputs: what the model's forward would be given, `input_ids [1, T]` of placeholders included.
    """

    call: Call
    patches: int
    tokens: int
    inputs: dict[str, Any]


class Blueprint:
    """A model without weights. `of` finds the config; the constructor takes one.

    Attributes:
        name: what the user called it. folder: where its other files are; None if the config came alone.
        config: transformers' config. model: on meta, in eval mode. dtype: of the weights.
        attention: `sdpa`, or `eager` where that was asked for or the family has nothing else.
    """

    def __init__(
        self,
        name: str,
        config: Any,
        *,
        attention: str = "sdpa",
        dtype: torch.dtype | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.dtype = dtype or stored_dtype(config)
        self.folder = folder
        self.model, self.attention = build(config, attention, self.dtype)

    @classmethod
    def of(cls, source: str | Path, *, attention: str = "sdpa", dtype: torch.dtype | None = None) -> Blueprint:
        """The blueprint of a folder, a config.json, a hub id in the local cache, or a shipped profile.

        Args:
            dtype: of the weights; None for what the config says.

        Raises:
            ModelError: there is no such thing, or its config is not that of an image-text-to-text model.
        """
        found = find_config(source)
        return cls(found.name, found.config, attention=attention, dtype=dtype, folder=found.folder)

    @cached_property
    def tower(self) -> Tower:
        """Raises PartsNotFound if the model has none."""
        return find_tower(self.model)

    @cached_property
    def parts(self) -> Parts:
        """Of the language model. Raises PartsNotFound if one is missing."""
        return find_parts(self.model)

    @cached_property
    def twin(self) -> nn.Module:
        """The model on shapes, for calls that end before its decoder: its layers are the first over and over."""
        try:
            layers = [layer for _, layer in self.parts.layers]
        except PartsNotFound:
            layers = []
        lists = (part for part in self.model.modules() if isinstance(part, nn.ModuleList))
        return fake_twin(shortened(self.model, {part for part in lists if layers and list(part) == layers}))

    def patches(self, width: int, height: int, images: int = 1) -> int:
        """What `picture` would say, without a look at the model where the processor alone decides.

        Raises:
            As `picture`; a size that only the model's own code refuses may pass.
        """
        features = self._cut(width, height, images)
        found = self._counted(features, images, width, height)
        return self.picture(width, height, images).patches if found is None else found

    def picture(self, width: int, height: int, images: int = 1, encode: Encode | None = None) -> Picture:
        """What the model would be asked for `images` pictures of that size, in pixels.

        The checkpoint's own image processor decides how they are cut, if the folder describes one; else its family's,
        with the sizes that the config gives.

        Args:
            encode: gives the features of the call on shapes (None: it cannot), where they are counted to know the
                tokens; so a dry run that is made anyway serves for both.

        Raises:
            OptionError: a picture without pixels.
            ModelError: there is no image processor for this family, it refuses that size, or the model's own code does.
        """
        features = self._cut(width, height, images)
        with self._told(width, height):
            inputs = accepted(self.model, features)
            call = self._asked(inputs, images)
            tokens = self._tokens(inputs, call, images)
            if not tokens:
                encoded = encode(call) if encode is not None else None
                tokens = _rows(self._encoded(call) if encoded is None else encoded)
        patches = self._counted(features, images, width, height)
        held = {"input_ids": self._prompt(tokens), **inputs}
        return Picture(call, tokens if patches is None else patches, tokens, held)

    def _cut(self, width: int, height: int, images: int) -> dict[str, Any]:
        """What the processor makes of such pictures."""
        if min(width, height, images) < 1:
            raise OptionError(f"There is no picture of {width}x{height} pixels: give two numbers above 0.")
        with self._told(width, height):
            return shapes_of(self._processor, width, height, images)

    def _counted(self, features: Mapping[str, Any], images: int, width: int, height: int) -> int | None:
        """Patches of what the processor made; None where a picture is not cut into patches before the tower."""
        with self._told(width, height):
            if self._side is None and "image_grid_thw" not in features:
                return None
            return sum(count_patches(features, self._processor, self._side, images))

    @contextmanager
    def _told(self, width: int, height: int) -> Iterator[None]:
        """Whatever the family's code raises at a picture of that size becomes one sentence."""
        try:
            yield
        except MmswapError:
            raise
        except Exception as error:
            raise ModelError(f"{self.name} cannot be shown a picture of {width}x{height}: {told(error)}.") from error

    @cached_property
    def _processor(self) -> Any:
        found = stored_processor(self.folder, self.config.model_type) if self.folder is not None else None
        found = found if found is not None else nominal_processor(self.config)
        if found is None:
            raise ModelError(f"{self.name}: transformers has no image processor for {self.config.model_type}.")
        return found

    @cached_property
    def _side(self) -> int | None:
        """Of a patch, in pixels: as the config says, else as far as the tower's first convolution steps."""
        said = patch_side(SimpleNamespace(image_processor=self._processor), self.config)
        parts = [part for _, module in self.tower.modules for part in module.modules()]
        steps = (part.stride[0] for part in parts if isinstance(part, nn.Conv2d) and part.in_channels == 3)
        return said or next((step for step in steps if step > 1), None)

    def _prompt(self, tokens: int) -> Tensor:
        names = ("image_token_id", "image_token_index")
        marks = [getattr(self.config, name, None) for name in names]
        return torch.full((1, tokens), next((mark for mark in marks if isinstance(mark, int)), 0))

    def _asked(self, inputs: Mapping[str, Any], images: int) -> Call:
        twin = self.twin
        with torch.no_grad(), FakeTrace(twin, names=False):
            given = self._beside(images + 1) | dict(inputs)
            call = find_tower(twin).call_for(fake_tensors(given, twin))
        return call.mapped(_on_meta)

    def _encoded(self, call: Call) -> Any:
        twin = self.twin
        faked = call.mapped(lambda tensor: fake_tensors(tensor, twin))
        with torch.no_grad(), FakeTrace(twin, names=False) as trace, repeats_skipped(twin, trace):
            return find_tower(twin).run(faked)

    def _beside(self, tokens: int) -> dict[str, Any]:
        """What a forward wants beside pictures: a prompt of placeholders, and the kinds of its tokens."""
        prompt = self._prompt(tokens)
        given: dict[str, Any] = {"input_ids": prompt}
        for name, parameter in inspect.signature(self.model.forward).parameters.items():
            if name == "mm_token_type_ids":
                given[name] = torch.ones_like(prompt)
            elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                given.setdefault(name, prompt if name.endswith("input_ids") else None)
        return given

    def _tokens(self, inputs: Mapping[str, Any], call: Call, images: int) -> int | None:
        """Placeholders of the pictures, where that needs no look at the tower's features."""
        if "image_grid_thw" in inputs and isinstance(merge := getattr(self._processor, "merge_size", None), int):
            return int(inputs["image_grid_thw"].prod(-1).sum()) // merge**2
        if "num_soft_tokens_per_image" in inputs:
            return int(sum(inputs["num_soft_tokens_per_image"]))
        if call.entry == METHOD:
            return None
        counts = (getattr(self.config, name, None) for name in ("num_query_tokens", "image_seq_length"))
        return images * next((count for count in counts if isinstance(count, int)), 1)


def _on_meta(tensor: Tensor) -> Tensor:
    """Without the mode in which it was fake: the call is for any twin."""
    if not (is_fake(tensor) or tensor.is_floating_point()):
        return tensor
    return torch.empty_like(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"))


def _rows(features: Any) -> int:
    """Vectors that stand for pictures among the features: those of `pooler_output` where there is one."""
    pooled = getattr(features, "pooler_output", None)
    leaves = [leaf for leaf in pytree.tree_leaves(features if pooled is None else pooled) if isinstance(leaf, Tensor)]
    return sum(leaf.shape[:-1].numel() for leaf in (leaves[:1] if pooled is None else leaves))
