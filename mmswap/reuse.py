"""What one prompt leaves for the next: a follow-up about the same pictures reads nothing but its own words.

    reuse = Reuse(runtime.model, runtime.caching, runtime.card)
    begun = reuse.begin(prompt, prepared, placeholder)      # its key, and what is kept that serves it
    reuse.keep(generation.kept);  reuse.forget()

One chat's keys and values are kept, in the card's ledger, until a prompt comes that they do not serve.
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
class Begun:
    """`key`: of the prompt, to keep what it leaves; None: nothing of it can be kept. `kept` serves `shared` tokens."""

    key: Key | None = None
    kept: Kept | None = None
    shared: int = 0


class Reuse:
    """Keys and values of the last chat, if they can serve another prompt."""

    def __init__(self, model: Any, caching: Caching, card: Card) -> None:
        self._model, self._caching, self._card = model, caching, card
        self._kept: Kept | None = None
        self._asked = False
        self._refused: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept on the card between two prompts."""
        kept = self._kept
        return int(kept.cache.nbytes) if kept is not None else 0

    def begin(self, prompt: Prompt, prepared: Prepared, placeholder: int | None, say: Say) -> Begun:
        """What of a prompt need not be read; nothing is kept any more if that is nothing."""
        if not self._asked:  # once, and not before anybody goes on with a chat
            self._asked, self._refused = True, cannot_go_on(self._model, self._caching)
            if self._refused is not None:
                say(f"Every turn is read whole, for this model cannot go on where the last one ended: {self._refused}.")
        if self._refused is not None:
            return Begun()
        ids = prepared.inputs["input_ids"][0].tolist()
        hashes = [f"{picture_hash(image)} {prompt.limits[at : at + 1]}" for at, image in enumerate(prompt.images)]
        pictures = [(hash, info.tokens) for hash, info in zip(hashes, prepared.images)]
        key = chat_key(ids, placeholder, pictures)
        shared = self._kept.serves(key) if self._kept is not None and key is not None else 0
        kept = self._kept if shared else None
        self.forget()
        if kept is not None:
            rest = len(ids) - shared
            say(f"{shared} of {len(ids)} tokens are in the KV cache from the turn before: {rest} are read.")
        return Begun(key, kept, shared)

    def keep(self, kept: Kept | None) -> None:
        """Hold on to what an answer left."""
        self.forget()
        self._kept = kept
        if kept is not None:
            self._card.claim(CLAIM, kept.cache.nbytes)

    def forget(self) -> None:
        """Give the bytes back."""
        self._kept = None
        self._card.release(CLAIM)
