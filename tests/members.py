"""People who want answers of one runtime at a time, for tests of `Several`: they remember what they were told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageDraw

from mmswap.config import SamplingConfig
from mmswap.place import Member
from mmswap.reuse import Turn
from mmswap.runtime import Runtime
from mmswap.several import Several

NEVER_ENDS = ((0, -100.0), (2, -100.0))  # the carried model's end ids


def circle(colour: str, size: tuple[int, int] = (150, 120)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    width, height = size
    ImageDraw.Draw(image).ellipse((width // 4, height // 4, width * 2 // 3, height * 3 // 4), fill=colour)
    return image


def ask(text: str, *pictures: Image.Image) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


class Asker(Member):
    """Remembers its text, its answer or its error, and in which order things happened to all."""

    def __init__(
        self,
        runtime: Runtime,
        messages: list[dict[str, Any]],
        tokens: int = 12,
        *,
        name: str = "",
        diary: list[str] | None = None,
        leaves_after: int = 10**6,
        turn: Turn | None = None,
        **more: Any,
    ) -> None:
        self.runtime, self.messages, self.name = runtime, messages, name
        self.sampling = SamplingConfig(max_new_tokens=tokens, logit_bias=NEVER_ENDS, **more)
        self.diary = diary if diary is not None else []
        self.turn, self.leaves_after = turn or Turn(), leaves_after
        self.text, self.pieces, self.made, self.left = "", 0, 0, False
        self.answer: Any = None
        self.error: BaseException | None = None
        self.over = False

    def alone(self) -> str:
        """What it is told when nobody else is there."""
        stream = self.runtime.stream(self.messages, sampling=self.sampling)
        return "".join(stream)

    def make(self, place: Any) -> Any:
        self.made += 1
        return self.runtime.stream(
            self.messages, sampling=self.sampling, reuse=self.turn, should_stop=self.gone, place=place
        )

    def inputs(self) -> Any:
        rendered = self.runtime.render(self.messages)
        return self.runtime.on_card(self.runtime.prepare(rendered).inputs) if rendered.images else None

    def gone(self) -> bool:
        return self.left or self.pieces >= self.leaves_after

    def piece(self, stream: Any, text: str) -> None:
        if not self.pieces:
            self.diary.append(f"{self.name} begins")
        self.text += text
        self.pieces += 1

    def ended(self, stream: Any) -> None:
        self.over = True
        self.diary.append(f"{self.name} ends")
        self.answer = stream.answer

    def cut(self) -> None:
        self.over = True

    def failed(self, error: BaseException) -> None:
        self.over, self.error = True, error


def serve(several: Several, members: Sequence[Asker], each: Callable[[int], Any] = int, rounds: int = 3000) -> None:
    """Everybody joins at once; `each` is called before every round."""
    for member in members:
        several.join(member)
    for number in range(rounds):
        if not several.busy:
            return
        each(number)
        several.turn()
    raise AssertionError("it does not end")
