"""Find a checkpoint's chat template and render messages with it, in the form of content that the template expects.

Order: `chat_template.jinja`, `chat_template.json`, `processor_config.json`, `tokenizer_config.json`; of several named
templates the one called `default`. Knows no pictures beyond the parts that stand for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmswap.errors import UserError, told
from mmswap.vision.checkpoint import find_file, read_json

Message = Mapping[str, Any]

_PROBE = "mmswapprobe"
_FILES = ("chat_template.json", "processor_config.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template and where it was found."""

    text: str
    origin: str


def find_template(source: str | Path) -> Template | None:
    """The template that counts, or None if the checkpoint has none."""
    path = find_file(source, "chat_template.jinja")
    if path is not None:
        return Template(Path(path).read_text(encoding="utf-8"), "chat_template.jinja")
    for name in _FILES:
        text = _choose(read_json(source, name).get("chat_template"), name)
        if text:
            return Template(text, name)
    return None


def _choose(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, dict) and isinstance(value.get("default"), str):
        return str(value["default"])
    known = ", ".join(map(str, value)) if isinstance(value, dict) else "none"
    raise UserError(f"{name} holds several chat templates and none is called 'default' (found: {known}).")


class Renderer:
    """Renders messages with one template; finds out by trying whether it wants text or lists of parts."""

    def __init__(self, template: Template | None, tokenizer: Any, image_token: str | None, source: str | Path) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._image_token = image_token
        self._source = source
        self._wants: dict[tuple[str, bool], bool] = {}

    @property
    def text(self) -> str:
        """The template itself; empty where there is none."""
        return self._template.text if self._template is not None else ""

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **kwargs: Any) -> str:
        """The prompt as text, one placeholder for each picture.

        Raises:
            UserError: there is no template, or it refuses these messages.
        """
        if self._template is None:
            raise UserError(
                f"{self._source} has no chat template: none of chat_template.jinja, {_FILES[0]}, {_FILES[1]} or "
                f"{_FILES[2]} holds one; put a chat_template.jinja beside its config.json."
            )
        fitted = [self._fit(message) for message in messages]
        try:
            return self._apply(fitted, add_generation_prompt=add_generation_prompt, **kwargs)
        except Exception as error:
            raise UserError(f"The model's chat template refuses these messages: {told(error)}.") from error

    def _apply(self, messages: Sequence[Message], **kwargs: Any) -> str:
        assert self._template is not None
        return str(
            self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], chat_template=self._template.text, tokenize=False, **kwargs
            )
        )

    def _fit(self, message: Message) -> Message:
        role, content = str(message["role"]), message.get("content")
        role = "system" if role == "developer" else role
        parts = _as_parts(content)
        has_image = any(part["type"] == "image" for part in parts)
        empty = [{"type": "text", "text": ""}]
        fitted = (parts or empty) if self._wants_parts(role, has_image) else self._as_text(parts)
        return {**message, "role": role, "content": fitted}

    def _as_text(self, parts: list[dict[str, Any]]) -> str:
        return "\n".join(part["text"] if part["type"] == "text" else self._image_token or "" for part in parts)

    def _wants_parts(self, role: str, has_image: bool) -> bool:
        """Whether the content of this role must be a list of parts; text is preferred where there is no picture."""
        key = (role, has_image)
        if key not in self._wants:
            text: list[dict[str, Any]] = [{"type": "text", "text": _PROBE}]
            image: list[dict[str, Any]] = [{"type": "image"}]
            if has_image:
                self._wants[key] = self._shows(role, image + text, self._image_token)
            else:
                self._wants[key] = not self._shows(role, _PROBE) and self._shows(role, text)
        return self._wants[key]

    def _shows(self, role: str, content: Any, token: str | None = None) -> bool:
        # A template that was not made for this form drops the content, prints a list's repr, or raises.
        user = {"role": "user", "content": _PROBE if isinstance(content, str) else [{"type": "text", "text": "x"}]}
        chat = [{"role": role, "content": content}]
        chat = chat if role == "user" else [*chat, user] if role == "system" else [user, *chat]
        try:
            text = self._apply(chat)
        except Exception:
            return False
        wanted = 1 if not isinstance(content, str) or role == "user" else 2
        return (
            text.count(_PROBE) >= wanted
            and "'type'" not in text
            and '"type"' not in text
            and (token is None or text.count(token) == 1)
        )


def _as_parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    parts: list[dict[str, Any]] = []
    for part in content:
        if parts and part["type"] == parts[-1]["type"] == "text":
            # A line break joins neighbours: two halves of a control token's spelling never meet.
            parts[-1]["text"] += "\n" + part["text"]
        else:
            parts.append(dict(part))
    return parts
