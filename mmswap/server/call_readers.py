"""What models write when they call tools, read: one function a form. Texts in, names and arguments out; None: no call.

read_json('{"name": "look", "arguments": {"x": 1}}', {})  ->  [("look", {"x": 1})]

`tools`: name -> schema of its arguments, for forms that do not say whether `5` is a number or a text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Found: TypeAlias = list[tuple[str, dict[str, Any]]]
Tools: TypeAlias = Mapping[str, Mapping[str, Any] | None]
Read: TypeAlias = Callable[[str, Tools], Found | None]

_JSON = json.JSONDecoder()


def read_json(text: str, tools: Tools) -> Found | None:
    """`{"name", "arguments"}`, or `parameters`; several in a list, or with `;` or blanks between them."""
    rest, values = text.strip(), []
    while rest:
        try:
            value, end = _JSON.raw_decode(rest)
        except ValueError:
            return None
        values += value if isinstance(value, list) else [value]
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    found = [_named(value) for value in values]
    calls = [one for one in found if one is not None]
    return calls if calls and len(calls) == len(found) else None


def read_args(text: str, tools: Tools) -> Found | None:
    """`look[ARGS]{...}`, perhaps with `[CALL_ID]` before it; several begin with `[TOOL_CALLS]` again. Or as JSON."""
    calls: Found = []
    for one in filter(str.strip, text.split("[TOOL_CALLS]")):
        name, mark, arguments = one.partition("[ARGS]")
        if not mark:
            return read_json(text, tools) if not calls else None
        value = _object(arguments)
        if value is None:
            return None
        calls.append((name.partition("[CALL_ID]")[0].strip(), value))
    return calls or None


def read_xml(text: str, tools: Tools) -> Found | None:
    """`<function=look><parameter=x>5</parameter></function>`."""
    match = re.fullmatch(r"\s*<function=([^>\s]+)>(.*?)(?:</function>)?\s*", text, re.DOTALL)
    if match is None:
        return None
    pairs = re.findall(r"<parameter=([^>]+)>\n?(.*?)(?:\n?</parameter>|\n?(?=<parameter=)|\Z)", match[2], re.DOTALL)
    return [(match[1], {key: _typed(value, tools.get(match[1]), key) for key, value in pairs})]


def read_pairs(text: str, tools: Tools) -> Found | None:
    """`look <arg_key>x</arg_key> <arg_value>5</arg_value>`."""
    name, _, rest = text.partition("<arg_key>")
    if not re.fullmatch(r"[^\s<>{}]+", name.strip()):
        return None
    pattern = r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
    pairs = re.findall(pattern, f"<arg_key>{rest}", re.DOTALL)
    name = name.strip()
    return [(name, {key.strip(): _typed(value, tools.get(name), key.strip()) for key, value in pairs})]


def read_python(text: str, tools: Tools) -> Found | None:
    """`[look(x=5), draw(kind="star")]`; nothing is run. LFM2 writes JSON in the same place."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_called(call) for call in calls] or None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return read_json(text, tools)


def read_bare(text: str, tools: Tools) -> Found | None:
    """`call:look{x:5,kind:<escape>star<escape>}`: keys without quotes, texts between marks of their own."""
    match = re.fullmatch(r"\s*call:([^\s{]+)\s*(\{.*\})\s*", text, re.DOTALL)
    if match is None:
        return None
    try:
        value, end = _bare(match[2], 0, 0)
    except (ValueError, IndexError):
        return None
    return [(match[1], value)] if isinstance(value, dict) and end == len(match[2]) else None


def _named(value: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object(arguments)
    return (value["name"], arguments) if isinstance(arguments, dict) else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _typed(text: str, schema: Mapping[str, Any] | None, key: str) -> Any:
    """A text as what its schema says it is: anything but a text is JSON."""
    kind = (((schema or {}).get("properties") or {}).get(key) or {}).get("type", "string")
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _called(call: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, ast.Call) or call.args or any(one.arg is None for one in call.keywords):
        raise ValueError
    return ast.unparse(call.func), {str(one.arg): _literal(one.value) for one in call.keywords}


def _literal(node: ast.expr) -> Any:
    """A value of Python, or of JSON: `true` is True."""
    names: dict[str, Any] = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict) and all(node.keys):
        return {str(_literal(key)): _literal(value) for key, value in zip(node.keys, node.values) if key is not None}
    value = ast.literal_eval(node)
    json.dumps(value)  # a set or a complex number is no argument
    return value


_MARKS = ("<escape>", '<|"|>')
_DEEP = 50


def _bare(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends."""
    if depth > _DEEP:
        raise ValueError
    at = _blanks(text, at)
    for mark in _MARKS:
        if text.startswith(mark, at):
            end = text.index(mark, at + len(mark))
            return text[at + len(mark) : end], end + len(mark)
    if text[at] in "{[":
        return _bare_group(text, at, depth)
    if text[at] == '"':
        return _JSON.raw_decode(text, at)
    end = at
    while text[end] not in ",}]":
        end += 1
    word = text[at:end].strip()
    try:
        return json.loads(word), end
    except ValueError:
        return word, end


def _bare_group(text: str, at: int, depth: int) -> tuple[Any, int]:
    items: list[Any] = []
    keyed, at = text[at] == "{", at + 1
    while text[at := _blanks(text, at)] not in "}]":
        if keyed:
            if text[at] == '"' or text.startswith(_MARKS, at):
                key, at = _bare(text, at, depth + 1)
                at = _blanks(text, at)
            else:
                end = text.index(":", at)
                key, at = text[at:end].strip(), end
            if text[at] != ":":
                raise ValueError
            value, at = _bare(text, at + 1, depth + 1)
            items.append((str(key), value))
        else:
            value, at = _bare(text, at, depth + 1)
            items.append(value)
        at = _blanks(text, at)
        if text[at] == ",":
            at += 1
        elif text[at] not in "}]":
            raise ValueError
    return (dict(items) if keyed else items), at + 1


def _blanks(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at
