"""Token ids to text, piece by piece, and the texts that end an answer. Knows tokenizers, no models.

`Detokenizer(tokenizer).push(id)` gives the text that is certain by now: never half a character, never a lost space,
and the joined pieces are what decoding all ids at once gives. `StopFilter(stop).push(text)` holds back only what may
still become a stop text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

CALL_MARKS = frozenset(
    [
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
        "<|python_tag|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        "<|tool_call|>",
        "<|/tool_call|>",
    ]
)
"""Control tokens that are part of what an answer says: they mark the tools that it calls, and keep their spelling."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"
_BAD = "\ufffd"
_WINDOW = 6  # ids that a decoder of unknown kind sees again, so that its joining rules act as in one go
_PATIENCE = 4  # tokens that text of such a decoder may end in U+FFFD before that is taken for what is meant


class Spelling:
    """What single tokens stand for, whole characters or not: `Spelling(tokenizer).bytes_of(token)`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._rule = _rule_of(tokenizer)
        self._added = set(getattr(tokenizer, "added_tokens_decoder", {}))

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; of a control token its spelling, of an id that the vocabulary lacks none."""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""
        if self._rule is None or token in self._added:
            return str(self._tokenizer.decode([token])).encode()
        return self._rule.bytes_of(piece)


class Detokenizer:
    """Text of an answer, token by token; special tokens give none but `CALL_MARKS`.

    Byte-level and byte-fallback vocabularies are turned into bytes and those into text, so that a character is given
    out as soon as its last byte is there, and broken bytes become U+FFFD without holding anything back. Any other
    decoder is run over a window of the last ids.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {int(token) for token in tokenizer.all_special_ids}
        self._special |= {i for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items() if t.special}
        marks = (tokenizer.convert_tokens_to_ids(mark) for mark in CALL_MARKS)
        self._special -= {mark for mark in marks if mark is not None and mark != tokenizer.unk_token_id}
        self._rule = _rule_of(tokenizer)
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._started = False
        self._ids: list[int] = []
        self._given = 0  # ids of the window whose text is out
        self._waited = 0

    def push(self, token: int) -> str:
        """The text that became certain with this token."""
        if token in self._special:
            return ""
        return self._push_window(token) if self._rule is None else self._push_bytes(token, self._rule)

    def flush(self) -> str:
        """What was held back; an unfinished character becomes U+FFFD. The detokenizer may be used anew."""
        rest = self._window_text() if self._rule is None else self._bytes.decode(b"", final=True)
        self._bytes.reset()
        self._ids, self._given, self._waited, self._started = [], 0, 0, False
        return rest

    def _push_bytes(self, token: int, rule: _Rule) -> str:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return ""
        raw = rule.bytes_of(piece)
        if not self._started:
            raw = rule.opening(raw)
        self._started = True
        return self._bytes.decode(raw)

    def _push_window(self, token: int) -> str:
        self._ids.append(token)
        text = self._window_text()
        if text.endswith(_BAD) and self._waited < _PATIENCE:
            self._waited += 1
            return ""
        self._waited = 0
        self._ids = self._ids[-_WINDOW:]
        self._given = len(self._ids)
        return text

    def _window_text(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._given])
        return str(self._tokenizer.decode(self._ids))[len(before) :]


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a vocabulary spells bytes: `byte_level` (one letter a byte), else marked spaces and perhaps <0xNN>."""

    byte_level: bool
    byte_fallback: bool = False
    spaces_off: Literal["none", "one", "all"] = "none"

    def opening(self, raw: bytes) -> bytes:
        """The first piece of an answer, without the spaces that the decoder takes off it."""
        if self.spaces_off == "all":
            return raw.replace(b" ", b"")
        return raw.removeprefix(b" ") if self.spaces_off == "one" else raw

    def bytes_of(self, piece: str) -> bytes:
        if self.byte_level:
            known = [_BYTE_OF.get(letter) for letter in piece]
            return piece.encode() if None in known else bytes(byte for byte in known if byte is not None)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(_SPACE, " ").encode()


def _rule_of(tokenizer: Any) -> _Rule | None:
    """The rule that the tokenizer's own decoder follows, or None if it is of another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return None
    decoder = json.loads(backend.to_str()).get("decoder")
    steps = [decoder] if decoder and decoder["type"] != "Sequence" else (decoder or {}).get("decoders", [])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _Rule(byte_level=True)
    if kinds and kinds[-1] == "Metaspace" and set(kinds[:-1]) <= {"ByteFallback"}:
        never = steps[-1].get("prepend_scheme", "always") == "never"
        return _marked(steps[-1].get("replacement"), "ByteFallback" in kinds, "none" if never else "all")
    if kinds and kinds[0] == "Replace" and set(kinds[1:]) <= {"ByteFallback", "Fuse", "Strip"}:
        strip = next((step for step in steps if step["type"] == "Strip"), None)
        if strip is not None and (strip["content"], strip["start"], strip["stop"]) != (" ", 1, 0):
            return None
        mark = steps[0]["pattern"].get("String") if steps[0]["content"] == " " else None
        return _marked(mark, "ByteFallback" in kinds, "one" if strip is not None else "none")
    return None


def _marked(mark: str | None, byte_fallback: bool, spaces_off: Literal["none", "one", "all"]) -> _Rule | None:
    return _Rule(False, byte_fallback, spaces_off) if mark == _SPACE else None


def _letters() -> Iterator[tuple[str, int]]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others for letters from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = 256
    for byte in range(256):
        if byte in printable:
            yield chr(byte), byte
        else:
            yield chr(shifted), byte
            shifted += 1


_BYTE_OF = dict(_letters())


class StopFilter:
    """Ends an answer at the first of some stop texts, which is not shown, not even in part.

    Attributes:
        stopped: a stop text has come; everything pushed later is swallowed.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """What may be shown by now: everything but an end that could still become a stop text."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back when the answer ended otherwise."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
