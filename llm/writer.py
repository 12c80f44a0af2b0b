"""An answer as text: tokens decoded as they come, stop texts honoured, memory for the KV cache asked for as it grows.

Knows no pictures and no card: `room(tokens)` says whether the cache may grow to that many tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from mmswap.llm.decode import Generation, Token
from mmswap.llm.pause import Pause, next_of
from mmswap.llm.statistics import Statistics
from mmswap.llm.text import Detokenizer, StopFilter

Room = Callable[[int], bool]


class Writer(Iterator[str]):
    """Turns a `Generation` into pieces of text; nothing that was handed out is ever taken back.

    Attributes:
        finish_reason: None while it runs, then `stop` or `length` (or `cancelled` if it was closed).
        tokens: tokens of the answer so far, the ones of a stop text included.
        shown: the tokens whose text has been handed out, at least in part, or gives none.
        moves: the same pieces, with a `Pause` wherever others may have their turn.
        full: the KV cache could not grow any more, and the answer ended there.

    Args:
        patient: whether it is worth to wait for room; without it, never.
    """

    def __init__(
        self,
        generation: Generation,
        tokenizer: Any,
        stop: tuple[str, ...],
        room: Room,
        patient: Callable[[], bool] = bool,
    ) -> None:
        self.finish_reason: str | None = None
        self.tokens = 0
        self.shown: list[Token] = []
        self.full = False
        self._generation, self._patient = generation, patient
        self.moves = self._write(Detokenizer(tokenizer), StopFilter(stop), room)

    @property
    def statistics(self) -> Statistics:
        return self._generation.statistics

    def __next__(self) -> str:
        return next_of(self.moves)

    def close(self) -> None:
        """End the answer here; the cache is dropped."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self.moves.close()

    def _write(self, detokenizer: Detokenizer, filter: StopFilter, room: Room) -> Generator[str | Pause, None, None]:
        prompt = self._generation.statistics.prefill_tokens
        try:
            held: list[Token] = []
            for token in self._generation.moves:
                if isinstance(token, Pause):
                    yield token
                    continue
                self.tokens += 1
                held.append(token)
                if piece := filter.push(detokenizer.push(token.id)):
                    self.shown += held
                    held = []
                    yield piece
                if filter.stopped:
                    self.finish_reason = "stop"
                    return
                while not (fits := room(prompt + self.tokens)) and self._patient():
                    yield Pause.ROOM
                if not fits:
                    self.full, self.finish_reason = True, "length"
                    break
            piece = filter.push(detokenizer.flush()) + filter.flush()
            if piece or not filter.stopped:
                self.shown += held
            if piece:
                yield piece
            if filter.stopped:
                self.finish_reason = "stop"
            self.finish_reason = self.finish_reason or self._generation.finish_reason
        finally:
            self._generation.close()
