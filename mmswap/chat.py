"""A conversation: messages in order, pictures in their slots, and what the chat template makes of them.

Knows nothing of tensors or cards. A turn that fails is not kept: `Conversation.ask` adds the user's message, and
`Conversation.drop` takes it back, so that one bad picture never spoils the turns after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from PIL import Image

from mmswap.config import ImageConfig, PixelLimits
from mmswap.errors import OptionError
from mmswap.vision.images import open_image

Picture: TypeAlias = str | Path | bytes | Image.Image
Message: TypeAlias = Mapping[str, Any]

# Private-use characters: they stand in for a user's text while the template is rendered and placeholders are expanded.
SENTINEL_OPEN, SENTINEL_CLOSE = "\ue000", "\ue001"
_LIMITS = ("min_pixels", "max_pixels")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the processor is given: rendered text, pictures in the order of their slots, sentinel -> literal text.

    `limits`: what is asked of each picture, or nothing.
    """

    text: str
    images: tuple[Image.Image, ...]
    literals: Mapping[str, str]
    limits: tuple[PixelLimits, ...] = ()


@dataclass(slots=True)
class Conversation:
    """Turns of one chat, oldest first; pictures are decoded when they are added, so a bad one is refused at once."""

    config: ImageConfig = field(default_factory=ImageConfig)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str, images: Sequence[Picture] = ()) -> None:
        """Add a user's turn: pictures first, then the text.

        Raises:
            ImageError: a picture cannot or may not be decoded; the conversation stays as it was.
        """
        pictures = [open_image(image, limit=self.config.decode_limit) for image in images]
        parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
        self.messages.append({"role": "user", "content": [*parts, {"type": "text", "text": text}]})

    def drop(self) -> None:
        """Take the last message back: its turn failed."""
        self.messages.pop()

    def reply(self, text: str) -> None:
        """Add the assistant's turn."""
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})


def open_messages(messages: Sequence[Message], config: ImageConfig) -> list[dict[str, Any]]:
    """Messages in the usual form with every picture decoded: `content` a string, or parts of text and image.

    A part is `{"type": "text", "text": ...}`, `{"type": "image", "image": path | bytes | PIL image | data URI}` or
    `{"type": "image_url", "image_url": {"url": ...}}`. Either may have `min_pixels` and `max_pixels` beside its kind.

    Raises:
        OptionError: a message or part of unknown form. ImageError: a picture cannot or may not be decoded.
    """
    given: Any = messages
    listed = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if not (listed and all(isinstance(message, Mapping) for message in given)):
        raise OptionError("A prompt is a text, or a list of messages with role and content.")
    return [{**message, "content": _open_content(message, config)} for message in messages]


def render(
    messages: Sequence[Message],
    template: Callable[[list[dict[str, Any]]], str],
    dangerous: Callable[[str], bool],
) -> Prompt:
    """Render messages to the prompt's text.

    Texts that spell a control token (`dangerous`) are replaced by sentinels and handed on as literals, so that what a
    person writes can never end a turn or begin one.
    """
    literals: dict[str, str] = {}
    images: list[Image.Image] = []
    limits: list[PixelLimits] = []

    def guarded(text: str) -> str:
        if not dangerous(text) and SENTINEL_OPEN not in text and SENTINEL_CLOSE not in text:
            return text
        sentinel = f"{SENTINEL_OPEN}{len(literals)}{SENTINEL_CLOSE}"
        literals[sentinel] = text
        return sentinel

    def part(item: Mapping[str, Any]) -> dict[str, Any]:
        if item["type"] == "text":
            return {"type": "text", "text": guarded(item["text"])}
        images.append(item["image"])
        limits.append(limits_of(item))
        return {"type": "image"}

    slots: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            slots.append({**message, "content": guarded(content)})
        else:
            slots.append({**message, "content": [part(item) for item in content]})
    return Prompt(template(slots), tuple(images), literals, tuple(limits) if any(limits) else ())


def limits_of(part: Mapping[str, Any]) -> PixelLimits:
    """What a part of kind image asks for.

    Raises:
        OptionError: it makes no sense.
    """
    return PixelLimits(*(part.get(name) for name in _LIMITS))


def _open_content(message: Message, config: ImageConfig) -> str | list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        raise OptionError(f"A message's role must be system, user, assistant or tool, not {role!r}.")
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise OptionError(f"The content of a {role} message must be a text or a list of parts.")
    return [_open_part(part, config) for part in content]


def _open_part(part: Any, config: ImageConfig) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image" and "image" in part:
        return _open_picture(part, part["image"], config)
    if kind == "image_url" and isinstance(part.get("image_url"), Mapping) and "url" in part["image_url"]:
        return _open_picture(part, part["image_url"]["url"], config)
    raise OptionError("A part of a message must be a text, an image or an image_url; this one is none of them.")


def _open_picture(part: Mapping[str, Any], source: Any, config: ImageConfig) -> dict[str, Any]:
    kind = part["type"]
    unknown = [str(name) for name in part if name not in ("type", kind, *_LIMITS)]
    if unknown:
        known = " and ".join(_LIMITS)
        raise OptionError(f"A part of kind {kind} has no field {unknown[0]!r}: beside the picture it may have {known}.")
    limits_of(part)
    asked = {name: part[name] for name in _LIMITS if part.get(name) is not None}
    return {"type": "image", "image": open_image(source, limit=config.decode_limit), **asked}
