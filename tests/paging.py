"""What the page's tests share: asking, and waiting for an answer's end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser import Browser, until

PICTURES = Path(__file__).parents[1] / "examples" / "pictures"
STAR = PICTURES / "star_and_cross.png"

Open = Callable[..., Any]  # a runtime, and what of ServerConfig -> the engine


def ask(page: Browser, question: str) -> None:
    page.find("#question").type(question)
    page.press("enter")


def ended(page: Browser, number: int = 1) -> str:
    """The text of the latest answer, once `number` answers are whole."""
    whole = ".answer:not(.running)"
    until(lambda: len(page.all(whole)) == number and not page.all(".answering"), f"{number} answers")
    return str(page.all(f"{whole} .text")[-1].text)
