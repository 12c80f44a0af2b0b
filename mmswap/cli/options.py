"""What the flags of several commands have in common: metavars, help texts, numbers that are read or refused in words.

context: Annotated[int | None, whole("TOKENS", "Tokens of prompt and answer.")] = None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from mmswap.errors import OptionError

DTYPES = ("auto", "float32", "float16", "bfloat16")
ATTENTIONS = ("sdpa", "eager")
CARDS = "auto, cpu, cuda, cuda:1, sim:16GiB, sim:16GiB@24GB/s or sim:16GiB+wddm"

Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="auto (as stored), float32, float16 or bfloat16.")]
Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="int4: round the decoder's linear layers to 4 bits while they are loaded.",
        show_default="as stored",
    ),
]
QuantizeHead = Annotated[bool, typer.Option("--quantize-head", help="With --quantize: the output head too.")]
Attention = Annotated[str, typer.Option(metavar="KIND", help="sdpa or eager.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def whole(metavar: str, help_text: str, **more: Any) -> Any:
    """A flag that takes a whole number."""
    return typer.Option(metavar=metavar, help=help_text, parser=_reader(int, "a whole number"), **more)


def number(metavar: str, help_text: str, **more: Any) -> Any:
    """A flag that takes a number."""
    return typer.Option(metavar=metavar, help=help_text, parser=_reader(float, "a number"), **more)


def require_kinds(dtype: str, attention: str) -> None:
    """Raises `OptionError` unless both are known, before anything is imported that takes time."""
    if dtype not in DTYPES:
        raise OptionError("--dtype must be auto, float32, float16 or bfloat16.")
    if attention not in ATTENTIONS:
        raise OptionError("--attention must be sdpa or eager.")


def _reader(read: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not {what}.") from None

    return parse
