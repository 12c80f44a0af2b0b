"""Tool calls in the text of an answer as it comes, in the form of its model's chat template.

calls = Calls(style, tools);  for found in (*calls.push(text), *calls.flush()): ...         # texts, and `Call`s
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmswap.server.call_styles import Style

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments`: JSON as text, as OpenAI's shape has it."""

    name: str
    arguments: str
    id: str = field(default_factory=_new_id)


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be called in an answer, and how. `tools`: name -> schema of its arguments."""

    style: Style
    tools: Mapping[str, Mapping[str, Any] | None]


class Calls:
    """Splits an answer into text and calls; what only begins like a call is held back until that is certain.

    Attributes:
        count: calls found so far.
    """

    def __init__(self, offer: Offer) -> None:
        self.count = 0
        self._style, self._tools = offer.style, offer.tools
        self._held = ""
        self._inside = False
        self._begun = False  # whether the answer's first letter is known
        self._opened = ""  # the mark that opened what is held

    def push(self, text: str) -> list[str | Call]:
        """What is certain by now."""
        self._held += text
        found: list[str | Call] = []
        if self._waits_for_beginning():
            return found
        while mark := self._style.close if self._inside else self._style.open:
            at = self._held.find(mark)
            if at < 0:
                break
            piece, self._held = self._held[:at], self._held[at + len(mark) :]
            found += self._ended(piece, mark) if self._inside else self._text(piece)
            self._inside = not self._inside
            self._opened = mark
        if not self._inside:
            mark = self._style.open
            keep = next((size for size in range(len(mark) - 1, 0, -1) if self._held.endswith(mark[:size])), 0)
            if self.count and not self._held.strip():  # blanks between calls, or behind the last one
                keep = len(self._held)
            cut = len(self._held) - keep
            found += self._text(self._held[:cut])
            self._held = self._held[cut:]
        return found

    def flush(self) -> list[str | Call]:
        """What was held back; a call whose end mark is missing counts if it is whole."""
        rest, inside, self._held, self._inside = self._held, self._inside, "", False
        return self._ended(rest, "") if inside else self._text(rest)

    def _waits_for_beginning(self) -> bool:
        """Whether all that is known of the answer are blanks; where its first letter decides, it is looked at once."""
        if self._begun or not self._style.begins:
            return False
        first = self._held.lstrip()[:1]
        self._begun = bool(first)
        self._inside = bool(first) and first in self._style.begins
        return not first

    def _text(self, piece: str) -> list[str | Call]:
        return [piece] if piece and (piece.strip() or not self.count) else []

    def _ended(self, piece: str, mark: str) -> list[str | Call]:
        try:
            calls = self._style.read(piece, self._tools)
        except RecursionError:  # nested without end
            calls = None
        if not calls:
            return [self._opened + piece + mark]
        self.count += len(calls)
        return [self._call(name, arguments) for name, arguments in calls]

    def _call(self, name: str, arguments: Mapping[str, Any]) -> Call:
        letters = self._style.id_letters
        own = "".join(secrets.choice(_LETTERS) for _ in range(letters)) or _new_id()
        return Call(name, json.dumps(arguments, ensure_ascii=False), own)
