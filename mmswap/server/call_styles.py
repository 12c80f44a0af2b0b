"""The forms in which models call tools, as one table, and which of them a chat template uses.

style = style_of(called, shown, template)      # a prompt with a call in it, one with tools, the template's own text

A new form is a row here, a function in `call_readers`, and a shape in `call_grammar`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmswap.server import call_readers as readers
from mmswap.server.call_grammar import ArgsShape, FlatShape, JsonShape, Shape
from mmswap.server.call_readers import Read


@dataclass(frozen=True, slots=True)
class Style:
    """One form.

    Attributes:
        sign: what shows it in a rendered call, or in the words that ask for one.
        open: the mark with which calls begin; empty: only an answer that begins with a letter of `begins` is a call.
        close: the mark that ends one call; empty: calls last to the answer's end.
        read: what stands between the marks. shape: how a call is forced.
        id_letters: of a call's id, where the template minds; 0: as OpenAI's.
    """

    name: str
    sign: str
    read: Read
    shape: Shape
    open: str = ""
    close: str = ""
    begins: str = ""
    id_letters: int = 0

    @property
    def apart(self) -> bool:
        """Whether each call has an end of its own."""
        return bool(self.close) and self.name not in ("lfm2", "phi")


_XML = FlatShape(
    "<tool_call>\n<function=", ">\n", "<parameter=", ">\n", "\n</parameter>\n", "</function>\n</tool_call>"
)
_PAIRS = FlatShape("<tool_call>", "\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>")
_ESCAPED = FlatShape("<start_function_call>call:", "{", "", ":", "", "}<end_function_call>", ",", "<escape>")
_QUOTED = FlatShape("<|tool_call>call:", "{", "", ":", "", "}<tool_call|>", ",", '<|"|>')
_PYTHON = FlatShape("[", "(", "", "=", "", ")]", ", ", "json")
_MARKED = FlatShape("<|tool_call_start|>[", "(", "", "=", "", ")]<|tool_call_end|>", ", ", "json")

STYLES = (
    Style("qwen-xml", r"<tool_call>\s*<function=", readers.read_xml, _XML, "<tool_call>", "</tool_call>"),
    Style("glm", r"<arg_key>", readers.read_pairs, _PAIRS, "<tool_call>", "</tool_call>"),
    Style("gemma4", r"<\|tool_call>call:", readers.read_bare, _QUOTED, "<|tool_call>", "<tool_call|>"),
    Style(
        "functiongemma",
        r"<start_function_call>",
        readers.read_bare,
        _ESCAPED,
        "<start_function_call>",
        "<end_function_call>",
    ),
    Style(
        "mistral",
        r"\[TOOL_CALLS\][^\[\]]*(\[CALL_ID\][^\[\]]*)?\[ARGS\]",
        readers.read_args,
        ArgsShape("[TOOL_CALLS]", "[ARGS]"),
        "[TOOL_CALLS]",
        id_letters=9,
    ),
    Style(
        "mistral-list",
        r"\[TOOL_CALLS\]",
        readers.read_args,
        JsonShape("[TOOL_CALLS][", "]"),
        "[TOOL_CALLS]",
        id_letters=9,
    ),
    Style("lfm2", r"<\|tool_call_start\|>", readers.read_python, _MARKED, "<|tool_call_start|>", "<|tool_call_end|>"),
    Style(
        "phi",
        r"<\|tool_call\|>.*<\|/tool_call\|>",
        readers.read_json,
        JsonShape("<|tool_call|>[", "]<|/tool_call|>"),
        "<|tool_call|>",
        "<|/tool_call|>",
    ),
    Style("granite", r"<\|tool_call\|>", readers.read_json, JsonShape("<|tool_call|>[", "]"), "<|tool_call|>"),
    Style(
        "hermes",
        r"<tool_call>\s*\{",
        readers.read_json,
        JsonShape("<tool_call>\n", "\n</tool_call>"),
        "<tool_call>",
        "</tool_call>",
    ),
    Style(
        "llama",
        r'\{"name": [^{},]*, "parameters": ',
        readers.read_json,
        JsonShape("", "", "parameters"),
        "<|python_tag|>",
        begins="{",
    ),
    Style("python", r"\[[\w.]+\((\w+=[^()]*)?\)(, |\])", readers.read_python, _PYTHON, begins="["),
)


def style_of(*texts: str) -> Style | None:
    """The form that the first of these texts shows; a template's own text may hold several, so it comes last."""
    for text in texts:
        for style in STYLES:
            if re.search(style.sign, text, re.DOTALL):
                return style
    return None
