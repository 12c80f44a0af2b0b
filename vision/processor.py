"""Text and pictures to the tensors that a model takes, by transformers' own processor of the model's family.

Placeholders, grids and token types are transformers' own; added are limits on pixels, texts taken literally, and the
real patches and tokens of each picture. Knows no model. `load_processor(source)`, `.render(messages)`, `.prepare(...)`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmswap.config import ImageConfig, PixelLimits
from mmswap.errors import ImageError, MmswapError, ModelError, OptionError, UserError, told
from mmswap.vision.assemble import Parts, assemble
from mmswap.vision.family_defaults import images_defaults
from mmswap.vision.limits import Limiter
from mmswap.vision.literals import ControlTokens, LiteralTokenizer
from mmswap.vision.patches import count_patches, patch_side
from mmswap.vision.template import Message, Renderer, find_template


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One picture of a prompt: its own size in pixels, the patches of its tower call, its tokens in `input_ids`."""

    width: int
    height: int
    patches: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `Processor.prepare` made: `inputs` go to the model's forward (`input_ids` is [1, T])."""

    inputs: dict[str, torch.Tensor]
    images: tuple[ImageInfo, ...]


class Processor:
    """A family's processor, held to the user's limits.

    Attributes:
        tokenizer: transformers' tokenizer.
        image_token: the text that stands for one picture in a prompt, None if the family has none.
        template: the text of the chat template; empty if there is none.
    """

    def __init__(self, parts: Parts, limiter: Limiter, renderer: Renderer) -> None:
        self.tokenizer = parts.hf.tokenizer
        self.image_token: str | None = getattr(parts.hf, "image_token", None)
        self._hf = parts.hf
        self._config = parts.config
        self._limiter = limiter
        self._renderer = renderer
        self.template = renderer.text
        self._control = ControlTokens(self.tokenizer)
        self._side = patch_side(parts.hf, parts.config)

    def limits(self) -> str:
        """What `--image-min-pixels` and `--image-max-pixels` do for this family."""
        return self._limiter.explain()

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """The prompt as text by the model's chat template; keywords go to the template.

        Raises:
            UserError: there is no template, or it refuses these messages.
        """
        return self._renderer.render(messages, add_generation_prompt=add_generation_prompt, **kwargs)

    def dangerous(self, text: str) -> bool:
        """Whether the text spells a control token, or a placeholder for a picture, and so must be a literal."""
        if not _encodable(text):
            return True
        names = ("image_token", "video_token", "audio_token")
        placeholders = (getattr(self._hf, name, None) for name in names)
        return any(token and token in text for token in placeholders) or self._control.found_in(text)

    def prepare(
        self,
        text: str,
        images: Sequence[Image.Image] = (),
        literals: Mapping[str, str] | None = None,
        limits: Sequence[PixelLimits] = (),
    ) -> Prepared:
        """The tensors for one prompt.

        Args:
            text: the rendered prompt, one placeholder for each picture.
            images: upright RGB pictures (`open_image`), in the order of their placeholders.
            literals: sentinel in `text` -> the user's text that it stands for, tokenised without control tokens.
            limits: what is asked of each picture; none: nothing.

        Raises:
            OptionError: a picture cannot be held to its limits here.
            UserError: the number of pictures differs from the number of placeholders, or a text is not Unicode.
            ImageError: the family's processor refuses a picture.
        """
        if not all(map(_encodable, (text, *(literals or {}).values()))):
            raise UserError("The text holds half of a surrogate pair, which is not a character.")
        self._check_count(text, len(images))
        limiters = self._limiters_of(limits, len(images))
        call = _Call(self._hf, LiteralTokenizer(self.tokenizer, self._control, literals or {}), limiters)
        fitted = [limiter.fit(image) for limiter, image in zip(limiters, images)]
        inputs = call.run(text, fitted, self.tokenizer.bos_token)
        return Prepared(inputs, tuple(self._describe(images, call, inputs["input_ids"][0].tolist())))

    def _limiters_of(self, limits: Sequence[PixelLimits], count: int) -> list[Limiter]:
        """Of each picture; equal limits have one."""
        made = {asked: self._limiter.within(asked) if asked else self._limiter for asked in dict.fromkeys(limits)}
        return [made[asked] for asked in limits] if limits else [self._limiter] * count

    def _check_count(self, text: str, count: int) -> None:
        if self.image_token is None:
            return
        found = text.count(self.image_token)
        if found != count:
            raise UserError(f"The prompt has {found} places for pictures ({self.image_token}) and {count} were given.")

    def _describe(self, images: Sequence[Image.Image], call: _Call, ids: list[int]) -> list[ImageInfo]:
        if not images:
            return []
        patches = count_patches(call.features, self._hf.image_processor, self._side, len(images))
        tokens = self._tokens(ids, call.replacements, len(images))
        return [ImageInfo(*image.size, *counts) for image, *counts in zip(images, patches, tokens)]

    def _tokens(self, ids: list[int], replacements: list[str], count: int) -> list[int]:
        placeholder = self.placeholder(ids)
        total = ids.count(placeholder)
        if count == 1 or total == count:
            return [total // count] * count
        spelling = self.tokenizer.convert_ids_to_tokens(placeholder)
        shares = [replacement.count(spelling) for replacement in replacements]
        if len(shares) != count or sum(shares) != total:
            raise ModelError(f"{count} pictures have {total} tokens, and {type(self._hf).__name__} does not say which.")
        return shares

    def placeholder(self, ids: list[int]) -> int:
        """The id that stands for a picture in a prompt that has one."""
        candidates = [getattr(self._config, name, None) for name in ("image_token_id", "image_token_index")]
        candidates += list(getattr(self._hf, "image_token_ids", ())) + [getattr(self._hf, "image_token_id", None)]
        candidates.append(self.tokenizer.convert_tokens_to_ids(self.image_token) if self.image_token else None)
        for candidate in candidates:
            if isinstance(candidate, int) and candidate in ids and candidate != self.tokenizer.unk_token_id:
                return candidate
        raise ModelError(f"{type(self._hf).__name__} left no image token in the prompt: is its tokenizer complete?")


class _Call:
    """One call of a transformers processor, on a copy that notes what it makes of each picture."""

    def __init__(self, hf: Any, tokenizer: LiteralTokenizer, limiters: Sequence[Limiter]) -> None:
        self.features: Mapping[str, Any] = {}
        self.replacements: list[str] = []
        self._hf = copy.copy(hf)
        self._hf.tokenizer = tokenizer
        self._hf.image_processor = _Noting([limiter.processor for limiter in limiters] or [hf.image_processor], self)
        self._replace = getattr(self._hf, "get_text_with_replacements", None)
        if self._replace is not None:
            self._hf.get_text_with_replacements = self._note_replacements

    def run(self, text: str, images: list[Image.Image], bos: str | None) -> dict[str, torch.Tensor]:
        # As transformers' own chat path does: a template that writes BOS itself must not get a second one.
        special = not (bos and text.startswith(bos))
        name = type(self._hf).__name__
        try:
            out = self._with_images(text, images, special) if images else self._without_images(text, special)
        except MmswapError:
            raise
        except ValueError as error:
            kind = ImageError if images else UserError
            raise kind(f"The model's {name} refuses this prompt: {told(error)}.") from error
        except Exception as error:
            raise ModelError(f"{name} fails on this prompt ({told(error)}).") from error
        return _as_tensors(out)

    def _with_images(self, text: str, images: list[Image.Image], special: bool) -> Any:
        more = {"return_tensors": "pt", "text_kwargs": {"add_special_tokens": special}}
        try:
            return self._hf(text=text, images=[images], **more)  # one list of pictures for the one prompt
        except ValueError as first:
            try:
                return self._hf(text=text, images=images, **more)  # GOT-OCR2 wants them without the outer list
            except ValueError:
                raise first from None

    def _without_images(self, text: str, special: bool) -> Any:
        try:
            return self._hf(text=text, return_tensors="pt", text_kwargs={"add_special_tokens": special})
        except ValueError:  # PaliGemma takes no text without a picture
            return self._hf.tokenizer([text], return_tensors="pt", add_special_tokens=special)

    def _note_replacements(self, text: Any, images_replacements: Any = (), *args: Any, **kwargs: Any) -> Any:
        self.replacements = [str(replacement) for replacement in images_replacements]
        assert self._replace is not None
        return self._replace(text, list(images_replacements), *args, **kwargs)


class _Noting:
    """An image processor whose result is noted in the call. `each`: of each picture; mostly it is one for all."""

    def __init__(self, each: Sequence[Any], call: _Call) -> None:
        self._image_processor = each[0]
        self._each = each if any(one is not each[0] for one in each) else None
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image_processor, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        features = self._one_by_one(*args, **kwargs) if self._each else self._image_processor(*args, **kwargs)
        self._call.features = dict(features)  # a copy: processors remove what the model does not take
        return features

    def _one_by_one(self, images: Any, **kwargs: Any) -> Any:
        """Each picture by its own processor; joined where patches of pictures lie one behind the other."""
        assert self._each is not None
        flat = [image for group in images for image in (group if isinstance(group, (list, tuple)) else [group])]
        found = [processor([image], **kwargs) for processor, image in zip(self._each, flat)]
        if not all("image_grid_thw" in one for one in found):
            raise OptionError("With this model all pictures of a prompt must have the same min_pixels and max_pixels.")
        joined = {name: torch.cat([torch.as_tensor(one[name]) for one in found]) for name in found[0]}
        return type(found[0])(data=joined)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _as_tensors(out: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for name, value in out.items():
        if name == "labels":  # PaliGemma's processor adds them for training
            continue
        if isinstance(value, (np.ndarray, list)):
            value = torch.as_tensor(np.asarray(value))
        if isinstance(value, torch.Tensor):
            tensors[name] = value
    return tensors


def load_processor(
    source: str | Path, config: ImageConfig | None = None, *, trust_remote_code: bool = False
) -> Processor:
    """The processor of a checkpoint folder or hub id. torchvision is not needed.

    Raises:
        ModelError: a file is missing or damaged, or the family cannot be served; the message names it.
    """
    parts = assemble(source, trust_remote_code=trust_remote_code)
    kind = getattr(parts.config, "model_type", None)
    limiter = Limiter(parts.hf.image_processor, config or ImageConfig(), images_defaults(kind) if kind else None)
    image_token = getattr(parts.hf, "image_token", None)
    renderer = Renderer(find_template(source), parts.hf.tokenizer, image_token, source)
    return Processor(parts, limiter, renderer)
