"""What an answer is given to work with, its claims on the card and how it lives beside others; and who wants it. Knows
no model.

`Place(memory, memory.grow)` is that of an answer alone; `Several` makes those of several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmswap.errors import MmswapError

if TYPE_CHECKING:
    from mmswap.llm.memory import TextMemory
    from mmswap.stream import Stream


class NoRoomYet(MmswapError):
    """There is not enough memory beside what others hold: the answer begins when one of them has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """See the module.

    Attributes:
        memory: the claims of this answer alone.
        beside: kept caches of other chats that may stay on the card.
        meanwhile: called where others may go on: between two layers of the prompt, or of the encoder. Given: bytes that
            nobody needs at that moment, None where that is not known better than from the card.
        grow: whether the KV cache may hold so many tokens.
        patient: whether room may come by waiting.
        shortage: there was too little memory: True if something was given up and it may be tried again. Raises
            `NoRoomYet` where others hold it.
        pictures: other prompts' inputs whose pictures may be encoded in the same window.
    """

    memory: TextMemory
    grow: Callable[[int], bool]
    beside: Callable[[], int] = int
    meanwhile: Callable[[int | None], None] | None = None
    patient: Callable[[], bool] = bool
    shortage: Callable[[], bool] = bool
    pictures: Callable[[], list[Any]] = list


class Member(ABC):
    """Somebody who wants an answer, and is told how it goes."""

    @abstractmethod
    def make(self, place: Place) -> Stream:
        """The answer, not begun; called again if there was no room for it beside others."""

    def inputs(self) -> Any:
        """What the model will be given, if that has pictures; asked once, before its turn."""
        return None

    @abstractmethod
    def gone(self) -> bool:
        """Whether nobody wants it any more."""

    @abstractmethod
    def piece(self, stream: Stream, text: str) -> None:
        """More of its text."""

    @abstractmethod
    def ended(self, stream: Stream) -> None:
        """It is whole."""

    @abstractmethod
    def cut(self) -> None:
        """It is over before its end: nobody wanted it any more, or everything ends."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """It came to nothing."""
