"""Answers that must be JSON, of a schema or a tool's arguments: `llguidance` says which tokens may come next.

grammars = Grammars(facts);  make = grammars.schema({"type": "object"});  constraint = make()
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mmswap.errors import MmswapError
from mmswap.server.call_grammar import OPTIONS, Unforceable
from mmswap.server.call_styles import Style
from mmswap.server.facts import Facts
from mmswap.server.refusal import Refusal

if TYPE_CHECKING:
    from mmswap.llm.sampling import Constraint

Make = Callable[[], "Constraint"]


class Grammars:
    """Grammars over one model's tokens; the vocabulary is read when the first one is asked for."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tokens: Any = None

    def schema(self, schema: Mapping[str, Any] | bool, place: str) -> Make:
        """What makes constraints for JSON of that schema.

        Raises:
            Refusal: the schema is wrong, or asks for what cannot be held to; `place` is where it stands.
        """
        from llguidance import LLMatcher

        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=OPTIONS)  # type: ignore[arg-type]
        except ValueError as error:
            raise _refused(str(error), place) from None
        return self._made(grammar, place)

    def call(self, style: Style, tools: Mapping[str, Mapping[str, Any] | None], place: str) -> Make:
        """What makes constraints for exactly one call of one of these tools (name -> schema of its arguments).

        Raises:
            Refusal: the model's form of a call cannot follow these schemas.
        """
        from llguidance import LLMatcher

        try:
            text = style.shape.grammar(tools, self._spell)
        except Unforceable as error:
            sentence = f"{place}: this model cannot be held to a call: {error}. Use tool_choice auto."
            raise Refusal(400, sentence, param=place, code="unsupported") from None
        return self._made(LLMatcher.grammar_from_lark(text), place)

    def _spell(self, text: str) -> str:
        """A text as the tokenizer has it: marks that are tokens of their own, and letters."""
        tokenizer = self._facts.tokenizer
        added = {token.content: number for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
        marks = [re.escape(mark) for mark in sorted(added, key=len, reverse=True) if mark in text]
        pieces = re.split(f"({'|'.join(marks)})", text) if marks else [text]
        return " ".join(f"<[{added[one]}]>" if one in added else json.dumps(one) for one in pieces if one) or '""'

    def _made(self, grammar: str, place: str) -> Make:
        from llguidance import LLMatcher

        tokens = self._get_tokens()
        failed, said = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
        if failed or said:
            raise _refused(said[0] if said else "it cannot be used", place)
        return lambda: Grammar(LLMatcher(tokens, grammar), self._facts.end_ids)

    def _get_tokens(self) -> Any:
        if self._tokens is None:
            from llguidance import LLTokenizer

            facts = self._facts
            backend = getattr(facts.tokenizer, "backend_tokenizer", None)
            if backend is None:
                sentence = "This model has no tokenizer.json, so its answers cannot be held to a form."
                raise Refusal(400, sentence, param="response_format", code="unsupported")
            ends = sorted(facts.end_ids)
            self._tokens = LLTokenizer(backend.to_str(), n_vocab=facts.vocabulary, eos_token=ends)
        return self._tokens


class Grammar:
    """One answer's `Constraint`."""

    def __init__(self, matcher: Any, end_ids: frozenset[int]) -> None:
        self._matcher, self._end_ids = matcher, end_ids

    def limit(self, scores: Tensor) -> Tensor:
        """See `mmswap.llm.sampling.Constraint`."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
        allowed = torch.zeros(len(scores), dtype=torch.bool)
        known = min(len(bits), len(scores))
        allowed[:known] = torch.from_numpy(bits[:known]).bool()
        if not allowed.any() or self._matcher.is_error():
            raise MmswapError(f"The answer cannot be held to its form: {self._why()}.")
        return scores.masked_fill(~allowed, float("-inf"))

    def accept(self, token: int) -> None:
        if token not in self._end_ids and not self._matcher.consume_token(token):
            raise MmswapError(f"The answer cannot be held to its form: {self._why()}.")

    def _why(self) -> str:
        return str(self._matcher.get_error() or "no token may come next").splitlines()[0].rstrip(".")[:200]


def _refused(reason: str, place: str) -> Refusal:
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it cannot be used"]
    sentence = f"{place}: this schema cannot be used: {lines[0].rstrip('.')[:300]}."
    return Refusal(400, sentence, param=place, code="invalid_schema")
