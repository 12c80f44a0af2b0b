"""The page: sections of checks, as text of 100 columns in plain ASCII, and as one JSON object. Decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from mmswap.doctor.check import Check

WIDTH = 100
MARKS = {"ok": "ok", "note": "note", "broken": "BROKEN", "unknown": "?"}
_MARK, _NAME = 9, 20  # columns
_INDENT = " " * (_MARK + _NAME + 1)


class Page:
    """Takes the checks as they come.

    Attributes:
        sections: section -> name -> check.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.sections: dict[str, dict[str, Check]] = {}
        self._last = ""

    def head(self) -> str:
        """The first line."""
        return f"mmswap {self.version} doctor"

    def add(self, section: str, check: Check) -> Iterator[str]:
        """The lines of one check, with the heading where a section begins."""
        self.sections.setdefault(section, {})[check.name] = check
        if section != self._last:
            self._last = section
            yield ""
            yield section
        yield from text_of(check)

    def named(self, state: str) -> list[str]:
        """Names of the checks that came to `state`."""
        return [name for checks in self.sections.values() for name, check in checks.items() if check.state == state]

    def foot(self) -> list[str]:
        """What is broken, and what to do with the page."""
        broken = self.named("broken")
        verdict = f"Broken: {', '.join(broken)}." if broken else "Nothing is broken."
        return ["", *_wrapped(f"{verdict} The page names no person, host or home folder: paste it whole.", "")]

    def to_json(self) -> dict[str, Any]:
        """One object; sizes in bytes."""
        devices, memory = self.sections.get("devices", {}), self.sections.get("memory", {})
        card = dict(devices["card"].facts) if "card" in devices else {}
        free = memory.get("free")
        return {
            "mmswap": self.version,
            "broken": self.named("broken"),
            "notes": self.named("note"),
            "card": {**card, "free": free.facts.get("bytes") if free else None} if card else None,
            "sources": {
                name: {"bytes": check.facts["bytes"], "reason": check.reason}
                for name, check in memory.items()
                if check.facts.get("source")
            },
            "sections": {
                section: {name: check.to_json() for name, check in checks.items()}
                for section, checks in self.sections.items()
            },
        }


def text_of(check: Check) -> Iterator[str]:
    """Mark, name and value; the reason below; the advice behind an arrow."""
    name = f"  {MARKS[check.state]:<{_MARK - 2}}{check.name:<{_NAME}}"
    gap = " " if len(name) < len(_INDENT) else "\n" + _INDENT  # a long name has the line for itself
    first, *rest = _wrapped(check.value, _INDENT) or [""]
    yield from (name + gap + first.strip()).rstrip().split("\n")
    yield from rest
    if check.reason:
        yield from _wrapped(check.reason, _INDENT)
    if check.advice:
        yield from _wrapped("-> " + check.advice, _INDENT)


def _wrapped(text: str, indent: str) -> list[str]:
    """A path longer than the line stays whole."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
