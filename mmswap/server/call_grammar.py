"""Grammars that force exactly one call of a tool, in the forms of `call_styles`. Schemas in, text of Lark out.

text = FlatShape(...).grammar({"draw": schema}, spell)         # `spell`: a text as tokens of its own and letters

Raises `Unforceable` with a sentence where a form cannot spell what a schema asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# A model may lay its JSON out, but not write blanks for ever.
OPTIONS = {"whitespace_pattern": r"( |\n {0,8})?"}

Spell = Callable[[str], str]
Tools = Mapping[str, Mapping[str, Any] | None]

_FREE = {"type", "title", "description", "default", "examples", "$comment"}
_SPOKEN = {*_FREE, "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "strict"}


class Unforceable(Exception):
    """The form cannot spell this; the message is the end of a sentence."""


class Shape(Protocol):
    """How one call is spelled."""

    def grammar(self, tools: Tools, spell: Spell) -> str:
        """Lark whose `start` is exactly one call of one of these tools."""


@dataclass(frozen=True, slots=True)
class JsonShape:
    """`{"name": ..., "arguments": {...}}` between two texts."""

    before: str
    after: str
    arguments: str = "arguments"

    def grammar(self, tools: Tools, spell: Spell) -> str:
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, self.arguments: schema or {"type": "object"}},
                "required": ["name", self.arguments],
                "additionalProperties": False,
            }
            for name, schema in tools.items()
        ]
        one = {"anyOf": calls} if len(calls) > 1 else calls[0]
        return f"start: {spell(self.before)} call {spell(self.after)}\ncall: {_json(one)}\n"


@dataclass(frozen=True, slots=True)
class ArgsShape:
    """Name and arguments as JSON, with a mark before each."""

    before: str
    between: str

    def grammar(self, tools: Tools, spell: Spell) -> str:
        names = [f"{json.dumps(name)} {spell(self.between)} args{number}" for number, name in enumerate(tools)]
        rules = [f"args{number}: {_json(schema or {'type': 'object'})}" for number, schema in enumerate(tools.values())]
        return f"start: {spell(self.before)} ({' | '.join(names)})\n" + "\n".join(rules) + "\n"


@dataclass(frozen=True, slots=True)
class FlatShape:
    """Arguments one by one: `before` name `opened` (`key_before` key `key_after` value `value_after`)* `after`.

    `quote`: what stands around texts; empty: nothing; `json`: they are spelled as JSON.
    """

    before: str
    opened: str
    key_before: str
    key_after: str
    value_after: str
    after: str
    between: str = ""
    quote: str = ""

    def grammar(self, tools: Tools, spell: Spell) -> str:
        rules: list[str] = []
        calls = []
        for number, (name, schema) in enumerate(tools.items()):
            calls.append(
                f"{json.dumps(name)} {spell(self.opened)} {self._arguments(f't{number}', schema, spell, rules)}"
            )
        whole = f"{spell(self.before)} ({' | '.join(calls)}) {spell(self.after)}"
        return "\n".join([f"start: {whole}", *rules, _TEXTS[self.quote]]) + "\n"

    def _arguments(self, prefix: str, schema: Mapping[str, Any] | None, spell: Spell, rules: list[str]) -> str:
        """The rule for a tool's arguments in their order; each that is not required may be left out."""
        schema = schema or {}
        other = set(schema) - _SPOKEN
        if other:
            raise Unforceable(f"its form of a tool call cannot follow {sorted(other)[0]!r} of a schema")
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        if required - set(properties):
            raise Unforceable(f"{sorted(required - set(properties))[0]!r} is required and has no schema")
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        names = list(properties)
        for at, name in enumerate(names):
            if not re.fullmatch(r"[\w.-]+", name):
                raise Unforceable(f"its form of a tool call cannot spell the name {name[:40]!r}")
            value = self._value(f"{prefix}v{at}", properties[name], shared, spell, rules)
            pair = (
                f"{spell(self.key_before)} {json.dumps(name)} {spell(self.key_after)} {value} {spell(self.value_after)}"
            )
            for begun in (0, 1):
                taken = f"{spell(self.between) if begun else ''} {pair} {prefix}a{at + 1}x1"
                left = "" if name in required else f" | {prefix}a{at + 1}x{begun}"
                rules.append(f"{prefix}a{at}x{begun}: {taken}{left}")
        rules += [f'{prefix}a{len(names)}x{begun}: ""' for begun in (0, 1)]
        return f"{prefix}a0x0"

    def _value(self, rule: str, schema: Any, shared: Mapping[str, Any], spell: Spell, rules: list[str]) -> str:
        schema = schema if isinstance(schema, Mapping) else {}
        kinds = schema.get("type", "string")
        if self.quote == "json" or (kinds != "string" and "enum" not in schema):
            if not self.quote and isinstance(kinds, list) and "string" in kinds:
                raise Unforceable("its form of a tool call cannot tell a text from other values")
            rules.append(f"{rule}: {_json({**shared, **schema})}")
            return rule
        quote = spell(self.quote) if self.quote else ""
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            words = [
                f"{quote} {_text(value)} {quote}" if isinstance(value, str) else _text(json.dumps(value))
                for value in values
            ]
            rules.append(f"{rule}: {' | '.join(words)}")
            return rule
        if set(schema) - _FREE:
            raise Unforceable(f"its form of a tool call cannot follow {sorted(set(schema) - _FREE)[0]!r} of a text")
        rules.append(f"{rule}: {quote} WORDS {quote}")
        return rule


_TEXTS = {
    "": r"WORDS: /([^<]|<[^\/<])*/",  # what may stand before a closing mark
    "<escape>": r"WORDS: /[^<]*/",
    '<|"|>': r"WORDS: /[^<]*/",
    "json": "",
}


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': OPTIONS})}"
