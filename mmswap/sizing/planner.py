"""What a model needs of a card, and whether it is there: the runtime's own rules, without weights and without a card.

    planner = Planner(blueprint, room, wish)
    planner.free(context), planner.decide(planner.cost, context), planner.step(context, features)

Weights and cache lie on the card. The tower runs when a picture comes, the prompt is read after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmswap.config import SMALLEST_CHUNK
from mmswap.errors import ContextOverflow, OptionError
from mmswap.llm.kv.kinds import Kind, kv_kind
from mmswap.sizing.answer import FITS, HOST, ONE_BY_ONE, WINDOW
from mmswap.sizing.facts import Cost, Facts
from mmswap.sizing.pictures import Pictures
from mmswap.sizing.reading import Reading
from mmswap.sizing.room import Room
from mmswap.sizing.weights import Weights
from mmswap.sizing.wish import Wish
from mmswap.swap.plan import Need, Plan, Rung, plan

if TYPE_CHECKING:
    from mmswap.blueprint import Blueprint

ROOM = 1024  # tokens for words, at the least, beside pictures that fill a context that nobody asked for
CONTEXT = 8192  # tokens where nothing is asked for and the model allows more


class Planner:
    """One model on one card with one wish.

    Attributes:
        most: tokens that the model was made for. context: those of the plan. kv: how the cache is kept.
        facts, about: of the model. weights, pictures, cost (of those that were asked for), prompt: what takes memory.

    Raises:
        OptionError: a context that the model was not made for. ContextOverflow: the pictures alone fill it.
        ModelError: a part of the model cannot be found out from its config.
    """

    def __init__(self, model: Blueprint | Facts, room: Room, wish: Wish) -> None:
        self.facts: Facts = model if isinstance(model, Facts) else _traced(model, room)
        self.room, self.wish = room, wish
        self.about = self.facts.about()
        self.most = self.about.most
        self.context = self._context()
        self.kv: Kind = kv_kind(wish.kv or "auto", self.about.dtype)
        self.weights: Weights = self.facts.weights(wish.quantize)
        self.pictures = Pictures(self.facts)
        self.cost: Cost = self.pictures.cost(wish.width, wish.height, wish.images)
        tokens = self.cost.picture.tokens
        if wish.context is None and tokens + ROOM > self.context:  # nobody asked for one that the pictures overflow
            self.context = min(self.most, -(-(tokens + ROOM) // ROOM) * ROOM)
        if tokens >= self.context:
            raise ContextOverflow(tokens, self.context)
        self.prompt = Reading(self.facts, (wish.width, wish.height, wish.images))
        if self.kv.quantised and not self.prompt.layout.ours:
            raise OptionError(f"--kv {self.kv.name} does not work with {self.facts.name}: leave it out.")

    def cache(self, context: int) -> int:
        """Bytes of a full KV cache."""
        return self.prompt.layout.nbytes(context, self.kv)

    def free(self, context: int) -> int:
        """Bytes beside weights and cache; below 0 if these alone are too large."""
        return self.room.usable - self.weights.total - self.cache(context)

    def reading(self, context: int, chunk: int) -> int:
        """Bytes that reading a prompt of `context` tokens in steps of `chunk` takes beside the cache."""
        step = self.prompt.step(context, chunk) + self.weights.unpacked
        return max(self.prompt.way, self.prompt.held(context) + step)

    def step(self, context: int, features: int) -> int | None:
        """The largest prefill step with which a prompt that fills the context can be read; None: not even the least."""
        room, chunks = self.free(context) - features, self.chunks(context)
        if room < 0 or self.reading(context, chunks[-1]) > room:
            return None
        return next(chunk for chunk in chunks if self.reading(context, chunk) <= room)

    def chunks(self, context: int) -> list[int]:
        """The prefill steps that are tried for a prompt of that length, the largest first."""
        return self.prompt.chunks(min(self.wish.chunk, context))

    def window(self, need: Need, free: int) -> Plan:
        """What gives way for an encoder that needs so much."""
        ladder = self.weights.ladder if self.room.swaps else ()
        return plan(need, free, ladder, margin=self.wish.margin, link_rate=self.room.link_rate)

    def decide(self, cost: Cost, context: int) -> tuple[Plan, str]:
        """The window's plan, down the runtime's ladder: all at once, one picture at a time, on the CPU."""
        free = self.free(context)
        if free < 0:  # nothing that gives way could come back
            return plan(cost.need, 0, (), margin=self.wish.margin), HOST
        whole = self.window(cost.need, free)
        if not whole.deficit:
            return whole, FITS
        if not whole.shortfall:
            return whole, WINDOW
        if cost.images > 1 and self.room.swaps:
            one = self.pictures.cost(cost.width, cost.height)
            alone = self.window(lambda lent: one.peak.beyond(lent) + one.pixels + cost.features, free)
            if not alone.shortfall:
                return alone, ONE_BY_ONE
        return whole, HOST

    def holds(self, need: Need, features: int, context: int, *, window: bool) -> bool:
        """Whether the encoder fits, without eviction or with a `window`, and the prompt in its smallest steps."""
        free = self.free(context)
        if features + self.reading(context, min(SMALLEST_CHUNK, context)) > free:
            return False
        gives = [Rung("everything", sum(rung.nbytes for rung in self.weights.ladder))]  # the most that can be lent
        decided = plan(need, free, gives if window and self.room.swaps else (), margin=self.wish.margin)
        return not (decided.shortfall if window else decided.deficit)

    def _context(self) -> int:
        asked = self.wish.context
        if asked is not None and asked > self.most:
            raise OptionError(f"--context {asked} is above the {self.most} tokens that this model was made for.")
        return asked or min(self.most, CONTEXT)


def _traced(blueprint: Blueprint, room: Room) -> Facts:
    """Imported here and not before: where all answers are remembered, nobody waits for torch."""
    from mmswap.sizing.traced import traced

    return traced(blueprint, room)
