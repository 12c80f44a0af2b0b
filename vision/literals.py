"""Tokenise a prompt in which some texts must be taken literally: no control token is ever recognised inside them.

A prompt holds sentinels; each stands for a text by a user. Everything around them is tokenised as always. Between the
two control tokens that surround a sentinel, a twin of the tokenizer that knows no control tokens does the work, so that
the ids are those of a harmless text of that kind (same spaces, same merges). Knows no pictures and no chat format.

`ControlTokens(tokenizer)` once a model; `LiteralTokenizer(tokenizer, control, literals)` in the tokenizer's place.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmswap.errors import ModelError

# Marks "not at the start of the text" for the twin; a private-use spelling that no vocabulary holds.
_ANCHOR = "\U000f1a7c\U000f3e51\U000f1a7c"


class ControlTokens:
    """Which tokens steer the model (special, or added and not mere white space), and a twin tokenizer without them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._twin: Any = None
        self._anchor_id = -1
        added = {index: token for index, token in tokenizer.added_tokens_decoder.items() if _steers(token)}
        # The unknown token steers nothing: it is what any strange character becomes in some vocabularies.
        self.ids = (frozenset(added) | frozenset(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
        spellings = sorted({token.content for token in added.values()}, key=len, reverse=True)
        self.eats_right = frozenset(token.content for token in added.values() if token.rstrip)
        self.eats_left = frozenset(token.content for token in added.values() if token.lstrip)
        self.pattern = re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    def found_in(self, text: str) -> bool:
        """Whether the tokenizer would make a control token out of some part of this text."""
        if self.pattern.search(text):
            return True
        return not self.ids.isdisjoint(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_literally(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of a text without any control token; `at_start`: it stands at the very beginning of the prompt."""
        lead = "" if at_start else _ANCHOR
        ids = self._encode(lead + text)
        if not self.ids.isdisjoint(ids):
            # The vocabulary itself holds a spelling as an ordinary piece: cut it after its first character.
            ids = self._encode(lead + self.pattern.sub(lambda match: match[0][0] + _ANCHOR + match[0][1:], text))
        return ids

    def _encode(self, text: str) -> list[int]:
        twin = self._get_twin()
        return [index for index in twin.encode(text, add_special_tokens=False).ids if index != self._anchor_id]

    def _get_twin(self) -> Any:
        with self._lock:
            if self._twin is None:
                self._twin = self._make_twin()
                self._anchor_id = self._twin.token_to_id(_ANCHOR)
            return self._twin

    def _make_twin(self) -> Any:
        from tokenizers import AddedToken, Tokenizer

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(
                "This model has no tokenizer.json, and the text spells a control token of the model: without it such a "
                "text cannot be taken literally."
            )
        state = json.loads(backend.to_str())
        vocabulary = state["model"].get("vocab")
        known = vocabulary if isinstance(vocabulary, dict) else {}
        state["added_tokens"] = [
            token
            for token in state["added_tokens"]
            if not token["content"].strip(" \t\r\n\u2581") and known.get(token["content"]) == token["id"]
        ]
        state.update(post_processor=None, truncation=None, padding=None)
        twin = Tokenizer.from_str(json.dumps(state))
        twin.add_special_tokens([AddedToken(_ANCHOR, normalized=False, special=True)])
        return twin


class LiteralTokenizer:
    """Stands in for a tokenizer during one call of a processor; without literals in the text it only passes on."""

    def __init__(self, tokenizer: Any, control: ControlTokens, literals: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._literals = literals
        self._sentinels = re.compile("|".join(map(re.escape, literals)) or r"(?!)")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        """As the tokenizer's own call, for one text or a batch of one."""
        prompt = text if isinstance(text, str) else text[0]
        if not self._sentinels.search(prompt):
            return self._tokenizer(text, **kwargs)
        special = kwargs.pop("add_special_tokens", True)
        pieces = list(self._encode(prompt))
        before, after = _frame(self._tokenizer) if special else ([], [])
        spliced = _Spliced(before, pieces, after)
        return spliced.as_batch(kwargs.get("return_tensors"), bool(kwargs.get("return_token_type_ids")))

    def _encode(self, prompt: str) -> Iterable[_Piece]:
        for start, end, literally in self._cut(prompt):
            source = prompt[start:end]
            if literally:
                text = self._sentinels.sub(lambda match: self._literals[match[0]], source)
                yield _Piece(start, end, self._control.encode_literally(text, at_start=start == 0), None)
            elif source:
                encoded = self._tokenizer(source, add_special_tokens=False)
                yield _Piece(start, end, list(encoded["input_ids"]), encoded)

    def _cut(self, prompt: str) -> Iterable[tuple[int, int, bool]]:
        """Spans of the prompt: as always, literally, as always, ...; cuts lie beside control tokens only."""
        stops = [(match.start(), match.end(), match[0]) for match in self._control.pattern.finditer(prompt)]
        position = 0
        for match in self._sentinels.finditer(prompt):
            if match.start() < position:
                continue
            left, right = self._segment(prompt, stops, match.start(), match.end(), position)
            yield position, left, False
            yield left, right, True
            position = right
        yield position, len(prompt), False

    def _segment(
        self, prompt: str, stops: list[tuple[int, int, str]], start: int, end: int, position: int
    ) -> tuple[int, int]:
        left, right = position, len(prompt)
        index = bisect_right(stops, (start,))
        if index > 0 and stops[index - 1][1] > position:
            left = stops[index - 1][1]
            if stops[index - 1][2] in self._control.eats_right:
                left += _blanks(prompt[left:start])
        if index < len(stops):
            right = stops[index][0]
            if stops[index][2] in self._control.eats_left:
                right -= _blanks(prompt[end:right][::-1])
        return left, right


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    end: int
    ids: list[int]
    encoded: Any  # the tokenizer's own result, None for a literal piece


class _Spliced:
    """Pieces put together as one result of a tokenizer."""

    def __init__(self, before: list[int], pieces: list[_Piece], after: list[int]) -> None:
        self._pieces = pieces
        self.ids = list(before)
        self._offsets = []
        for piece in pieces:
            self._offsets.append(len(self.ids))
            self.ids += piece.ids
        self.ids += after

    def as_batch(self, tensor_type: Any, with_types: bool) -> Any:
        from transformers import BatchEncoding

        data = {"input_ids": [self.ids], "attention_mask": [[1] * len(self.ids)]}
        if with_types:
            data["token_type_ids"] = [[0] * len(self.ids)]
        batch = BatchEncoding(data, tensor_type=tensor_type)
        batch.char_to_token = self._char_to_token  # some processors ask where a placeholder went
        return batch

    def _char_to_token(self, batch_or_char: int, char: int | None = None) -> int | None:
        position = batch_or_char if char is None else char
        for piece, offset in zip(self._pieces, self._offsets):
            if piece.start <= position < piece.end and piece.encoded is not None:
                inner = piece.encoded.char_to_token(position - piece.start)
                return None if inner is None else offset + int(inner)
        return None


def _steers(token: Any) -> bool:
    return bool(token.special) or bool(token.content.strip(" \t\r\n\u2581"))


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after every text (BOS, EOS)."""
    inner = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    outer = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return outer[:start], outer[start + len(inner) :]
    return [], []
