"""What prompts leave for the next ones: a follow-up about the same pictures reads nothing but its own words.

    reuse = Reuse(runtime.model, runtime.caching, runtime.card)
    begun = reuse.begin(prompt, prepared, placeholder, say)      # its key, and what is kept that serves it
    reuse.keep(generation.kept);  reuse.forget()

Keys and values of a chat are kept, in the card's ledger, until their place is wanted for another's, or their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmswap.card import Card
from mmswap.chat import Prompt
from mmswap.llm.kv.caching import Caching
from mmswap.llm.kv.prefix import Kept, Key, chat_key, picture_hash
from mmswap.llm.kv.proof import cannot_go_on
from mmswap.vision.processor import Prepared

Say = Callable[[str], None]
CLAIM = "kept KV cache"


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt as a turn of a chat.

    Attributes:
        trace: stays beside what the prompt leaves.
        follows: whether the prompt may go on with what one of such a trace left.
    """

    trace: Any = None
    follows: Callable[[Any], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Begun:
    """`key`: of the prompt, to keep what it leaves; None: nothing of it can be kept. `kept` serves `shared` tokens."""

    key: Key | None = None
    kept: Kept | None = None
    shared: int = 0


class Reuse:
    """Keys and values of the last chats, if they can serve another prompt."""

    def __init__(self, model: Any, caching: Caching, card: Card) -> None:
        self._model, self._caching, self._card = model, caching, card
        self._kept: list[tuple[Kept, Any]] = []  # the oldest first
        self._asked = False
        self._refused: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept on the card between two prompts."""
        return sum(int(kept.cache.nbytes) for kept, _ in tuple(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def begin(
        self,
        prompt: Prompt,
        prepared: Prepared,
        placeholder: int | None,
        say: Say,
        turn: Turn = Turn(),
        beside: int = 0,
    ) -> Begun:
        """What of a prompt need not be read.

        Args:
            beside: so many others may stay kept; the oldest go. What serves the prompt is its own now.
        """
        if not self._asked:  # once, and not before anybody goes on with a chat
            self._asked, self._refused = True, cannot_go_on(self._model, self._caching)
            if self._refused is not None:
                say(f"Every turn is read whole, for this model cannot go on where the last one ended: {self._refused}.")
        if self._refused is not None:
            return Begun()
        ids = prepared.inputs["input_ids"][0].tolist()
        pictures = [(picture_hash(image), info.tokens) for image, info in zip(prompt.images, prepared.images)]
        key = chat_key(ids, placeholder, pictures)
        kept, shared = self._best(key, turn) if key is not None else (None, 0)
        self.forget(beside)
        if kept is not None:
            rest = len(ids) - shared
            say(f"{shared} of {len(ids)} tokens are in the KV cache from the turn before: {rest} are read.")
        return Begun(key, kept, shared)

    def keep(self, kept: Kept | None, trace: Any = None) -> None:
        """Hold on to what an answer left."""
        if kept is not None:
            self._kept.append((kept, trace))
            self._book()

    def forget(self, but: int = 0) -> None:
        """Give the bytes back, save those of the last ones."""
        del self._kept[: max(0, len(self._kept) - but)]
        self._book()

    def give_up(self) -> bool:
        """Give everything back for somebody who needs it; whether there was anything."""
        some = bool(self._kept)
        self.forget()
        return some

    def _best(self, key: Key, turn: Turn) -> tuple[Kept | None, int]:
        """What serves most of the prompt, taken out; of several the last one."""
        found = [(kept.serves(key), place) for place, (kept, trace) in enumerate(self._kept) if turn.follows(trace)]
        shared, place = max(found, default=(0, -1))
        return (self._kept.pop(place)[0], shared) if shared else (None, 0)

    def _book(self) -> None:
        if self._kept:
            self._card.claim(CLAIM, self.nbytes)
        else:
            self._card.release(CLAIM)
