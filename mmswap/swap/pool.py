"""`SwapPool`: layers whose memory can be lent to somebody else for a while, on any card and with anybody's model.

    pool = SwapPool(model.layers, card="cuda")
    with pool.window(need=encoder_bytes):
        features = encoder(pixels)

Knows modules and bytes, not what an image or a token is. What a window does is in `window`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import nn

from mmswap.card import Card, Reading, open_card
from mmswap.card.budget import adjusted
from mmswap.card.fill import over_once_placed
from mmswap.card.watching import watch_of
from mmswap.errors import MmswapError
from mmswap.swap import interrupts
from mmswap.swap.arena import Arena
from mmswap.swap.caution import Caution
from mmswap.swap.copier import Copier
from mmswap.swap.ground import make_ground
from mmswap.swap.mirror import Mirrors
from mmswap.swap.plan import Need, Rung
from mmswap.swap.restore import Job, Restoration
from mmswap.swap.turn import Turn, Turns
from mmswap.swap.unit import Layer, Unit, survey
from mmswap.swap.window import Window
from mmswap.units import format_bytes

_pools: weakref.WeakKeyDictionary[Card, set[str]] = weakref.WeakKeyDictionary()  # labels in use


class SwapPool:
    """Evictable units of one model on one card.

    Args:
        layers: modules, or `(name, module)` pairs, in ORDER OF USE. Their parameters and buffers move to the card, if
            they are not there yet, into one slab per unit; every Parameter object stays the same.
        card: a `Card`, or how a person names it (`auto`, `cpu`, `cuda:0`, `sim:16GiB@24GB/s`).
        ladder: names of units in the order in which they are given up, all of them by default from the last backwards.
            Units that it leaves out are never touched.
        root: the model that the layers belong to. Tensors that it also uses elsewhere (a head tied to the embedding)
            are then left where they are; without it only ties among the layers can be seen.

    Attributes:
        units: every unit, in order of use.
        ladder: the evictable ones, in the order in which they are given up.
        card: where they live.
        watch: notices bytes of this process that the driver spilled. caution: what windows learn from that.

    Raises:
        ValueError: a name or module that occurs twice, or a name in `ladder` that no unit has.
        WindowMisuse: a layer on `meta`.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        card: Card | str = "auto",
        *,
        ladder: Sequence[str] | None = None,
        root: nn.Module | None = None,
    ) -> None:
        self.card = open_card(card) if isinstance(card, str) else card
        self.units = survey(layers, root)
        self.ladder = _ordered(self.units, ladder)
        self.arena: Arena | None = None
        self.copier: Copier | None = None
        self.mirrors = Mirrors()
        self.restoration: Restoration | None = None
        self.turns = Turns()
        self._label = _label(self.card)
        weakref.finalize(self, _forget, self.card, self._label)
        if self.card.can_swap:
            self._move_in()
        self.watch = watch_of(self.card, pinned=_locked(self.mirrors))
        self.caution = Caution(self.watch)

    @property
    def nbytes(self) -> int:
        """Bytes that evicting everything would give."""
        return sum(unit.nbytes for unit in self.ladder)

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The ladder as the plan wants it."""
        return tuple(Rung(unit.name, unit.nbytes) for unit in self.ladder) if self.arena is not None else ()

    def free(self) -> Reading:
        """What the card says is free, and the pool's own idle bytes: a window gets those first."""
        idle = self.arena.scratch() if self.arena is not None else 0
        return adjusted(self.card.free(), idle, f"and {format_bytes(idle)} lie idle in the pool")

    def room(self, lent: int, outside: int) -> int:
        """Bytes that may be taken beside the slabs, read with `outside` bytes placed there; below 0 if the card is over
        its budget. Nothing may be lent yet, though slabs of `lent` bytes are given up.
        """
        assert self.arena is not None
        idle = max(0, self.arena.scratch() - lent)  # from earlier windows: only this one can get them
        beside = max(0, outside - idle)
        self.book(0)  # the lent bytes will be used: they count as taken, as they do on a real card
        try:
            over = over_once_placed(self.card, "the encoder", beside, self.card.free)
            return idle + (beside - over if over else max(beside, self.card.free().bytes))
        finally:
            self.book(lent)

    def over(self) -> int:
        """Bytes by which the card is over its budget with everything at home: they are spilled, and said to be."""
        over = self.card.free().over
        self.watch.poll("when an image had been encoded and the weights were back")
        if not self.watch.reads:
            self.watch.note(over, "when the weights were back after an image")
        return over

    @property
    def busy(self) -> bool:
        """Whether a window is open."""
        return self.turns.taken

    def window(self, need: Need = 0, *, layers: int = -1, margin: float = 0.05, overlap: bool = False) -> Window:
        """A window, to be used once, in a `with` statement.

        Args:
            need: bytes that the code inside will need, or a function from contiguous lent bytes to the bytes that it
                needs outside of them.
            layers: -1 evicts what is missing, 0 nothing, N the first N units of the ladder.
            margin: the share added to `need`.
            overlap: restore behind the code that follows, in order of use: a unit's own forward waits for it, and
                `settle` for all. Otherwise everything is back when the block ends.

        One window is open at a time: another thread's `with` waits for it, the same thread's raises `WindowMisuse`.
        """
        return Window(self, need, layers=layers, margin=margin, overlap=overlap)

    @interrupts.guarded
    def settle(self) -> None:
        """Returns once every unit is back and no hook is left; raises the first error of the restore, if there was one.

        Needed before weights are read other than by their modules' forward (a captured graph, a checkpoint). Another
        thread's window is waited for.
        """
        turn = Turn()
        errors: list[BaseException] = []
        try:
            interrupts.hold(turn)
            self.turns.take(turn, "`settle` was called while a window is open: leave the `with` block first.")
            errors = self.bring_back()
        finally:
            self.turns.give_back(turn)
            interrupts.let_go(turn)
        interrupts.deliver(raising=not errors)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Settles, gives the mirrors' memory back and strikes the claim out. The weights stay where they are.

        Raises:
            WindowMisuse: this thread has a window open.
        """
        self.settle()
        self.mirrors.clear()
        self.card.release(self._label)

    def bring_home(self) -> list[BaseException]:
        """Takes the slabs of missing units again and binds their tensors; what went wrong. No bytes move."""
        assert self.arena is not None
        errors: list[BaseException] = []
        missing = [index for index, unit in enumerate(self.ladder) if unit.missing]
        try:
            self.arena.retake(missing)
        except BaseException as error:
            errors.append(error)
        if self.arena.unbinds:
            for index in missing:
                if self.arena.is_home(index):
                    self.ladder[index].bind()
        return errors

    def jobs(self) -> list[Job]:
        """The units that are missing, in order of use, as work for a `Restoration`."""
        assert self.arena is not None
        place = {unit: index for index, unit in enumerate(self.ladder)}
        return [
            Job(unit, self.arena.slabs[place[unit]], self.mirrors[unit])
            for unit in self.units
            if unit in place and unit.missing and self.arena.is_home(place[unit])
        ]

    def book(self, lent: int) -> None:
        """Tells the card's ledger how much of the pool is lent at present."""
        self.card.claim(self._label, self.nbytes - lent)

    @interrupts.guarded
    def bring_back(self) -> list[BaseException]:
        """Waits for the restore under way; what it could not bring back is tried once more. Gives what went wrong."""
        errors: list[BaseException] = []
        if self.restoration is not None:
            self.restoration.settle()
            errors += self.restoration.drain()
        if any(unit.missing for unit in self.ladder):
            assert self.copier is not None
            errors += self.bring_home()
            again = Restoration(self.jobs(), self.copier)
            again.start(behind=False)
            again.settle()
            errors += again.drain()
        lost = [unit.name for unit in self.ladder if unit.missing]
        if lost and not errors:
            errors.append(MmswapError(f"could not be restored: {', '.join(lost)}"))
        if not lost:
            self.restoration = None
        return errors

    def _move_in(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            ground = make_ground(self.card, self.ladder)
            self.arena, self.copier, self.mirrors = ground.arena, ground.copier, ground.mirrors
        self.book(0)


def _label(card: Card) -> str:
    """How the card's ledger calls one pool: with a number only where it is not the first."""
    used = _pools.setdefault(card, set())
    number = next(number for number in range(1, len(used) + 2) if _numbered(number) not in used)
    used.add(_numbered(number))
    return _numbered(number)


def _numbered(number: int) -> str:
    return "evictable units" if number == 1 else f"evictable units {number}"


def _forget(card: Card, label: str) -> None:
    card.release(label)
    _pools.get(card, set()).discard(label)


def _locked(mirrors: Mirrors) -> Callable[[], int]:
    return lambda: mirrors.locked


def _ordered(units: Sequence[Unit], ladder: Sequence[str] | None) -> tuple[Unit, ...]:
    if ladder is None:
        return tuple(reversed(units))
    named = {unit.name: unit for unit in units}
    unknown = [name for name in ladder if name not in named]
    if unknown or len(set(ladder)) != len(ladder):
        raise ValueError(f"the ladder must name units, each at most once; {unknown or list(ladder)} does not")
    return tuple(named[name] for name in ladder)
