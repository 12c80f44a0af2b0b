"""Several answers of one runtime under way at a time: one batch of tokens, one prompt read at a time, one window.

    several = Several(runtime, limit=4)
    several.join(member);  while several.busy: several.turn()

An answer begins between two tokens of the others, and while its pictures are encoded and its prompt is read they go on,
with half of the time. They wait while weights are out. Everything happens in the thread that calls `turn`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mmswap.card.fill import most_within
from mmswap.config import SMALLEST_CHUNK
from mmswap.llm.batch import open_batch
from mmswap.llm.pause import Pause
from mmswap.place import Member, NoRoomYet, Place

if TYPE_CHECKING:
    from mmswap.llm.memory import TextMemory
    from mmswap.runtime import Runtime
    from mmswap.stream import Stream


class _Seat:
    """One answer under way. `starved`: its KV cache may not grow now."""

    def __init__(self, member: Member, number: int, memory: TextMemory) -> None:
        self.member, self.number, self.memory = member, number, memory
        self.stream: Stream | None = None
        self.starved = False


class Several:
    """See the module.

    Args:
        limit: answers under way at a time.
        pictures: inputs of prompts that have not joined yet, whose pictures may be encoded in somebody's window.

    Attributes:
        how: one sentence on how tokens are computed.
    """

    def __init__(self, runtime: Runtime, limit: int, pictures: Callable[[], list[Any]] = list) -> None:
        self._runtime, self.limit, self._pictures = runtime, limit, pictures
        self._batch = open_batch(runtime.decoding, runtime.caching.open, runtime.context - 1) if limit > 1 else None
        self._seats: list[_Seat] = []  # the oldest first
        self._coming: deque[Member] = deque()
        self._looked_at: WeakSet[Member] = WeakSet()
        self._memories = [runtime.memory.another(number) for number in range(1, limit + 1)]
        self._opening: _Seat | None = None
        self._turn = ExitStack()
        self._parked = False  # the next one waits until somebody's memory is free
        self._frozen = False  # no cache may grow: what is free is the encoder's
        self._ended, self._took = 0.0, 0.0  # when the last round that others had meanwhile ended, and its seconds
        self.how = self._describe()

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._seats or self._coming)

    @property
    def free(self) -> int:
        """How many more may join and begin."""
        return max(0, self.limit - len(self._seats) - len(self._coming))

    @property
    def held(self) -> int:
        """Bytes of all KV caches that are claimed now."""
        return sum(memory.held for memory in self._memories)

    def join(self, member: Member, *, first: bool = False) -> None:
        """Want an answer; before others that have not begun, if it goes on with one."""
        (self._coming.appendleft if first else self._coming.append)(member)

    def turn(self) -> None:
        """At most one answer begins, and every one that is under way gets its next token."""
        for member in [one for one in self._coming if one.gone()]:
            self._coming.remove(member)
            member.cut()
        if self._may_open():
            self._open(self._coming.popleft())
        self._write()

    def close(self) -> None:
        """End everything; everybody is told that the answer is cut."""
        coming, self._coming = self._coming, deque()
        for member in coming:
            member.cut()
        for seat in tuple(self._seats):
            self._leave(seat)

    def _may_open(self) -> bool:
        starved = any(seat.starved for seat in self._seats)
        return bool(self._coming) and len(self._seats) < self.limit and not (starved or self._parked)

    def _open(self, member: Member) -> None:
        if not self._seats:
            self._turn.enter_context(self._runtime.turn())
        taken = {seat.number for seat in self._seats}
        number = next(number for number in range(self.limit) if number not in taken)
        seat = _Seat(member, number, self._memories[number])
        self._seats.append(seat)
        self._opening = seat
        try:
            seat.stream = member.make(self._place(seat))
            self._advance(seat)
        except NoRoomYet:
            self._leave(seat, tell=False)
            self._coming.appendleft(member)
            self._parked = bool(self._seats)
        except BaseException as error:
            self._leave(seat, error)
        finally:
            self._opening = None

    def _place(self, seat: _Seat) -> Place:
        seat.memory.alike = partial(self._next_step, seat)
        seat.memory.on_top = partial(self._on_top, seat)
        return Place(
            memory=seat.memory,
            grow=partial(self._grow, seat),
            beside=lambda: self.limit - len(self._seats),
            meanwhile=self._meanwhile if self.limit > 1 else None,
            patient=partial(self._patient, seat),
            shortage=partial(self._shortage, seat),
            pictures=self._ahead,
        )

    def _ahead(self) -> list[Any]:
        """Inputs of prompts whose turn has not come."""
        fresh = [member for member in self._coming if member not in self._looked_at and not member.gone()]
        self._looked_at.update(fresh)
        coming = [member.inputs() for member in fresh]
        return [*(inputs for inputs in coming if inputs is not None), *self._pictures()]

    def _write(self) -> None:
        """One token for every answer that has begun."""
        for seat in [one for one in self._writing() if one.member.gone()]:
            self._leave(seat)
        seats = self._writing()
        wanted = [seat.stream.wanted for seat in seats if seat.stream is not None and not seat.starved]
        if self._batch is not None:
            self._batch.take([one for one in wanted if one is not None and not one.given])
        for seat in seats:
            try:
                self._advance(seat)
            except BaseException as error:
                self._leave(seat, error)

    def _writing(self) -> list[_Seat]:
        return [seat for seat in self._seats if seat is not self._opening]

    def _advance(self, seat: _Seat) -> None:
        """Up to the answer's next pause, or its end."""
        assert seat.stream is not None
        for move in seat.stream.moves:
            if not isinstance(move, Pause):
                seat.member.piece(seat.stream, move)
                continue
            seat.starved = move is Pause.ROOM
            return
        self._leave(seat, whole=not seat.member.gone())

    def _leave(
        self, seat: _Seat, error: BaseException | None = None, *, whole: bool = False, tell: bool = True
    ) -> None:
        """The seat is free, and everything that was taken for it is given back."""
        if seat not in self._seats:
            return
        try:
            if seat.stream is not None:
                seat.stream.close()
        except BaseException as worse:
            error = error or worse
        self._seats.remove(seat)
        seat.memory.alike = seat.memory.on_top = int
        if self._batch is not None:
            self._batch.leave()
        self._parked = False
        if not self._seats:
            self._turn.close()
        if not tell:
            return
        if error is not None:
            seat.member.failed(error)
        elif whole and seat.stream is not None:
            seat.member.ended(seat.stream)
        else:
            seat.member.cut()

    def _meanwhile(self, spare: int | None) -> None:
        """The others' turn, while a prompt is read or (with `spare` bytes beside it) a picture is encoded."""
        began = time.perf_counter()
        pool = self._runtime.encoder.pool
        if began - self._ended < self._took or not self._writing():
            return
        if spare is not None and spare < max((seat.memory.step for seat in self._writing()), default=0):
            return
        if pool is not None and any(unit.missing for unit in pool.ladder):
            return
        if pool is not None and pool.restoration is not None and not pool.busy:
            pool.settle()  # a step reads weights that no module's forward waits for
        self._frozen = spare is not None
        try:
            self._write()
        finally:
            self._frozen = False
            self._ended = time.perf_counter()
            self._took = self._ended - began

    def _grow(self, seat: _Seat, tokens: int) -> bool:
        if self._frozen:
            return False
        grown = seat.memory.grow(tokens)
        return grown or (self._runtime.reuse.give_up() and seat.memory.grow(tokens))

    def _patient(self, seat: _Seat) -> bool:
        """Room comes when an encoder is done, or somebody ends. Where all wait for each other, the youngest ends."""
        if self._frozen or self._opening not in (None, seat):
            return True
        others = [one for one in self._writing() if one is not seat]
        return any(not one.starved for one in others) or (bool(others) and seat is not self._seats[-1])

    def _shortage(self, seat: _Seat) -> bool:
        if self._runtime.reuse.give_up():
            return True
        if len(self._seats) > 1:
            raise NoRoomYet("There is no room beside the answers that are under way.")
        return False

    def _next_step(self, seat: _Seat) -> int:
        """Bytes that the next token of all others takes while it goes through the model."""
        steps = [one.memory.step for one in self._writing() if one is not seat]
        return max(steps, default=0) * -(-len(self._seats) // SMALLEST_CHUNK)

    def _on_top(self, seat: _Seat) -> int:
        """Bytes that others need at the same time."""
        if self._opening is seat:
            return self._next_step(seat)
        return self._opening.memory.prefill if self._opening is not None else 0

    def _describe(self) -> str:
        if self._batch is None:
            return "One answer at a time."
        why = self._batch.why
        how = "their tokens as one batch" if why is None else f"token by token in turn, because {why}"
        return f"Up to {self.limit} answers at a time, {how}. {self._room()}"

    def _room(self) -> str:
        """What the card has room for when all seats are taken."""
        memory, context = self._runtime.memory, self._runtime.context

        def need(tokens: int) -> int:
            return memory.size(tokens) + (self.limit - 1) * memory.kv_bytes(tokens)

        free = memory.free().bytes
        if memory.kv_bytes(context) == memory.kv_bytes(1) or need(context) <= free:
            return f"Each may hold the context of {context} tokens."
        tokens = most_within(free, context, need)
        return (
            f"There is room for about {tokens} tokens each, of a context of {context}: beyond that they wait for room."
        )
