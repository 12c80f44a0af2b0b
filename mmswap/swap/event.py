"""The life of bytes as a trace notes it, and lifetimes as text that can be kept. Knows no torch.

text = packed(tracker.events)       # short, for blocks repeat: a few KB for ten thousand events
events = unpacked(text)             # the same sizes, order and kinds; names of operators and modules are gone
"""

from __future__ import annotations

import base64
import bz2
from collections.abc import Iterable
from dataclasses import dataclass

SCRATCH = "scratch:"


@dataclass(frozen=True, slots=True)
class Event:
    """`delta` bytes came to life (> 0) or died (< 0). An `ident` comes once with each sign; a survivor has no second.

    `op` is the operator that made the bytes (`scratch:` in front: the kernel's own, gone when the op is over),
    `module` the dotted path of the innermost module that was running. Both are empty on the dying side.
    """

    delta: int
    ident: int
    op: str
    module: str


def packed(events: Iterable[Event]) -> str:
    """Lifetimes as ASCII text.

    A birth is its bytes, with an `s` behind a kernel's own; a death is how many births ago its bytes came to life.
    """
    words, order = [], dict[int, int]()
    for event in events:
        if event.delta > 0:
            order[event.ident] = len(order)
            words.append(f"{int(event.delta)}{'s' if event.op.startswith(SCRATCH) else ''}")
        else:
            words.append(f"-{len(order) - order[event.ident]}")
    return base64.b85encode(bz2.compress(" ".join(words).encode())).decode()


def unpacked(text: str) -> tuple[Event, ...]:
    """The lifetimes of `packed`.

    Raises:
        ValueError: `text` is no such thing.
    """
    events: list[Event] = []
    births: list[int] = []
    try:
        for word in bz2.decompress(base64.b85decode(text)).decode().split():
            if word.startswith("-"):
                ident = len(births) + int(word)
                events.append(Event(-births[ident], ident, "", ""))
            else:
                births.append(int(word.removesuffix("s")))
                events.append(Event(births[-1], len(births) - 1, SCRATCH if word.endswith("s") else "", ""))
    except (OSError, EOFError, IndexError) as error:
        raise ValueError("these are no lifetimes") from error
    return tuple(events)
