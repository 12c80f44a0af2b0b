"""Tool calls in the text of an answer, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as they come.

calls = Calls();  for found in (*calls.push(text), *calls.flush()): ...         # texts, and `Call`s
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field

from mmswap.server.grammar import CLOSE, OPEN


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments`: JSON as text, as OpenAI's shape has it."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


class Calls:
    """Splits an answer into text and calls; what only begins like a call is held back until that is certain.

    Attributes:
        count: calls found so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._held = ""
        self._inside = False

    def push(self, text: str) -> list[str | Call]:
        """What is certain by now."""
        self._held += text
        found: list[str | Call] = []
        while True:
            mark = CLOSE if self._inside else OPEN
            at = self._held.find(mark)
            if at < 0:
                break
            piece, self._held = self._held[:at], self._held[at + len(mark) :]
            found += self._ended(piece, CLOSE) if self._inside else self._text(piece)
            self._inside = not self._inside
        if not self._inside:
            keep = next((size for size in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:size])), 0)
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

    def _text(self, piece: str) -> list[str | Call]:
        return [piece] if piece and (piece.strip() or not self.count) else []

    def _ended(self, piece: str, mark: str) -> list[str | Call]:
        try:
            value = json.loads(piece)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return [OPEN + piece + mark]
        self.count += 1
        return [Call(value["name"], json.dumps(value.get("arguments", {}), ensure_ascii=False))]
