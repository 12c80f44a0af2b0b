"""Answers in OpenAI's shapes: whole ones and chunks, of chats and of plain completions. Values in, JSON objects out.

reply = ChatReply(name, spelling, usage_asked=True);  reply.opening();  reply.piece(piece);  reply.whole(texts, ended)
"""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmswap.server.calls import Call, Calls, Offer
from mmswap.server.work import Ended, Piece

if TYPE_CHECKING:
    from mmswap.answer import Answer
    from mmswap.llm.decode import Token
    from mmswap.llm.text import Spelling

FLOOR = -9999.0  # what a logarithm that is no finite number is shown as


class Reply(ABC):
    """One request's answers. The base of both kinds: ids, usage, the frame of a chunk.

    Args:
        name: of the model. spelling: of its tokens.
        each: answers to each prompt. offer: tools whose calls are taken out of the answers' texts.
        usage_asked: whether a stream ends with a chunk of usage; the others then say `usage: null`.
    """

    prefix = ""
    kind = ""
    chunk_kind = ""

    def __init__(
        self,
        name: str,
        spelling: Spelling,
        *,
        each: int = 1,
        usage_asked: bool = False,
        logprobs: bool = False,
        offer: Offer | None = None,
    ) -> None:
        self._spelling, self._each = spelling, each
        self._usage_asked, self._logprobs = usage_asked, logprobs
        self._offsets: dict[int, int] = {}
        self._offer = offer
        self._calls: dict[int, Calls] = {}
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": name}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Chunks before an answer's first piece."""
        return []

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a piece of text."""
        return [self._chunk(self._choice(piece.index, piece.text, piece.tokens))]

    def ends(self, ended: Ended) -> list[dict[str, Any]]:
        """Chunks that end an answer; the last one has the figures under `mmswap`."""
        last = self._choice(ended.index, "", ended.tokens) | {"finish_reason": ended.answer.finish_reason}
        return [self._chunk(last) | {"mmswap": figures(ended.answer)}]

    def closing(self, answers: Sequence[Answer]) -> list[dict[str, Any]]:
        """Chunks after the last answer's end."""
        if not self._usage_asked:
            return []
        return [{**self._head, "object": self.chunk_kind, "choices": [], "usage": usage_of(answers, self._each)}]

    def whole(self, ended: Sequence[Ended], tokens: Mapping[int, Sequence[Token]]) -> dict[str, Any]:
        """Everything at once. `tokens`: of each answer."""
        choices = [self._whole_choice(one.index, one.answer, tokens.get(one.index, ())) for one in ended]
        answers = [one.answer for one in ended]
        body = {**self._head, "object": self.kind, "choices": choices, "usage": usage_of(answers, self._each)}
        return body | {"mmswap": figures(answers[0])}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        return chunk | {"usage": None} if self._usage_asked else chunk

    @abstractmethod
    def _choice(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        """A piece of one answer, in this reply's shape."""

    @abstractmethod
    def _whole_choice(self, index: int, answer: Answer, tokens: Sequence[Token]) -> dict[str, Any]:
        """One answer at its end, in this reply's shape."""


class ChatReply(Reply):
    """`/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self._chunk(self._delta(index, {"role": "assistant", "content": ""}))]

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        if self._offer is None:
            return super().pieces(piece)
        calls = self._calls.setdefault(piece.index, Calls(self._offer))
        return self._found(piece.index, calls.count, calls.push(piece.text), piece.tokens)

    def ends(self, ended: Ended) -> list[dict[str, Any]]:
        if self._offer is None:
            return super().ends(ended)
        calls = self._calls.setdefault(ended.index, Calls(self._offer))
        chunks = self._found(ended.index, calls.count, calls.flush(), ())
        last = super().ends(ended)
        last[-1]["choices"][0]["finish_reason"] = _reason(ended.answer, calls.count)
        return [*chunks, *last]

    def _found(
        self, index: int, count: int, found: Sequence[str | Call], tokens: Sequence[Token]
    ) -> list[dict[str, Any]]:
        """Chunks of texts and calls; logprobs go with the first of them."""
        chunks = []
        for one in found or ([""] if self._logprobs and tokens else []):
            delta: dict[str, Any] = {"content": one} if isinstance(one, str) else {"tool_calls": [_call(one, count)]}
            count += isinstance(one, Call)
            chunks.append(self._chunk(self._delta(index, delta, tokens)))
            tokens = ()
        return chunks

    def _choice(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return self._delta(index, {"content": text} if text else {}, tokens)

    def _delta(self, index: int, delta: dict[str, Any], tokens: Sequence[Token] = ()) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": self._listed(tokens), "finish_reason": None}

    def _whole_choice(self, index: int, answer: Answer, tokens: Sequence[Token]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        reason = answer.finish_reason
        if self._offer is not None:
            calls = Calls(self._offer)
            found = [*calls.push(answer.text), *calls.flush()]
            reason = _reason(answer, calls.count)
            message["content"] = "".join(one for one in found if isinstance(one, str)) or None
            if calls.count:
                made = (one for one in found if isinstance(one, Call))
                message["tool_calls"] = [_call(one, None) for one in made]
        listed = self._listed(tokens) or ({"content": [], "refusal": None} if self._logprobs else None)
        return {"index": index, "message": message, "logprobs": listed, "finish_reason": reason}

    def _listed(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._logprobs or not tokens:
            return None
        return {"content": [self._entry(token) for token in tokens], "refusal": None}

    def _entry(self, token: Token) -> dict[str, Any]:
        assert token.chosen is not None
        top = [self._spelled(one, logprob) for one, logprob in token.chosen.top]
        return {**self._spelled(token.id, token.chosen.logprob), "top_logprobs": top}

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._spelling.bytes_of(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


class CompletionReply(Reply):
    """`/v1/completions`."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _choice(self, index: int, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._listed(index, tokens), "finish_reason": None}

    def _whole_choice(self, index: int, answer: Answer, tokens: Sequence[Token]) -> dict[str, Any]:
        listed = self._listed(index, tokens)
        return {"index": index, "text": answer.text, "logprobs": listed, "finish_reason": answer.finish_reason}

    def _listed(self, index: int, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        spelled, offsets = [], []
        for token in tokens:
            spelled.append(self._spelling.bytes_of(token.id).decode("utf-8", "replace"))
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(spelled[-1])
        chosen = [token.chosen for token in tokens if token.chosen is not None]
        return {
            "tokens": spelled,
            "token_logprobs": [finite(one.logprob) for one in chosen],
            "top_logprobs": [self._top(one.top) for one in chosen] if any(one.top for one in chosen) else None,
            "text_offset": offsets,
        }

    def _top(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        return {self._spelling.bytes_of(one).decode("utf-8", "replace"): finite(value) for one, value in top}


def _call(call: Call, number: int | None) -> dict[str, Any]:
    """A call in a message; in a chunk with its number."""
    function = {"name": call.name, "arguments": call.arguments}
    made = {"id": call.id, "type": "function", "function": function}
    return made if number is None else {"index": number, **made}


def _reason(answer: Answer, calls: int) -> str:
    return "tool_calls" if calls and answer.finish_reason == "stop" else answer.finish_reason


def usage_of(answers: Sequence[Answer], each: int = 1) -> dict[str, Any]:
    """Tokens of a request. A prompt that `each` answers in a row share counts once; so does what was cached of it."""
    prompts = answers[::each]
    prompt, cached = (sum(getattr(one, name) for one in prompts) for name in ("prompt_tokens", "reused_tokens"))
    completion = sum(answer.completion_tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def figures(answer: Answer) -> dict[str, Any]:
    """What `mmswap chat --json` prints of an answer, without what OpenAI's shape has a place for."""
    known = ("text", "finish_reason", "usage", "load")
    return {name: value for name, value in answer.to_json().items() if name not in known}


def finite(logprob: float) -> float:
    """A logarithm that JSON can hold."""
    return logprob if math.isfinite(logprob) else FLOOR
