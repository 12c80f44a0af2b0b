"""Whether a request goes on with the one before, so that its keys and values may be begun with. Pure; knows no card.

    trace = trace_of(messages);  goes_on(last, trace)

A request that is asked again word for word is read anew: equal requests then give equal answers, with equal usage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmswap.chat import Prompt, limits_of
from mmswap.vision.images import content_key


@dataclass(frozen=True, slots=True)
class Trace:
    """A conversation as hashes: one for each message, one for each picture."""

    messages: tuple[str, ...]
    pictures: tuple[str, ...]


def trace_of(prompt: Sequence[dict[str, Any]] | Prompt) -> Trace:
    """The trace of messages with decoded pictures, or of a rendered prompt."""
    if isinstance(prompt, Prompt):
        return Trace((_hash(prompt.text),), tuple(content_key(image) for image in prompt.images))
    messages, pictures = [], []
    for message in prompt:
        content = message["content"]
        parts: list[Any] = [content] if isinstance(content, str) else []
        for part in content if not isinstance(content, str) else ():
            if part["type"] == "image":
                limits = limits_of(part)
                pictures.append(content_key(part["image"]) + (f" {limits}" if limits else ""))
                parts.append({"picture": pictures[-1]})
            else:
                parts.append(part["text"])
        rest = {key: value for key, value in message.items() if key != "content"}
        messages.append(_hash(json.dumps([rest, parts], sort_keys=True, default=str)))
    return Trace(tuple(messages), tuple(pictures))


def goes_on(last: Trace | None, now: Trace) -> bool:
    """Whether `now` is the conversation `last` with more behind it, or another question about the same pictures."""
    if last is None or now == last:
        return False
    longer = len(now.messages) > len(last.messages) and now.messages[: len(last.messages)] == last.messages
    return longer or bool(now.pictures and now.pictures == last.pictures)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
