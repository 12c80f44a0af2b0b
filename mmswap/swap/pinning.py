"""Host memory for mirrors: page-locked at its exact size, and ordinary memory where that fails. Knows no unit.

A failed pin raises nothing; it is said once.
"""

from __future__ import annotations

import contextlib
import logging
import weakref

from torch import Tensor

from mmswap.card.backend import Backend
from mmswap.swap.mirror import pageable
from mmswap.units import format_bytes

log = logging.getLogger(__name__)

PAGE = 4096


class PinnedHost:
    """Allocates mirrors.

    Args:
        limit: bytes that may be page-locked altogether; what exceeds it stays ordinary memory.

    Attributes:
        complete: whether everything so far is page-locked.
    """

    def __init__(self, backend: Backend, index: int, limit: int) -> None:
        self.complete = True
        self._backend = backend
        self._index = index
        self._left = limit
        self._locked: list[Tensor] = []
        weakref.finalize(self, _unlock, backend, self._locked)

    def allocate(self, nbytes: int) -> Tensor:
        """uint8 [nbytes], page-locked if it can be."""
        size = -(-nbytes // PAGE) * PAGE
        block = pageable(size + PAGE)
        whole = block.narrow(0, -block.data_ptr() % PAGE, size)  # whole pages: no neighbour is locked along with it
        if self._left >= size and self._pin(whole):
            self._left -= size
            self._locked.append(whole)
        elif self.complete:
            self._give_up()
        return whole.narrow(0, 0, nbytes)

    def locked(self) -> int:
        return sum(whole.numel() for whole in self._locked)

    def release(self) -> None:
        """Unlocks everything. No copy may be under way."""
        _unlock(self._backend, self._locked)

    def _pin(self, whole: Tensor) -> bool:
        try:
            self._backend.pin(whole)
            return True
        except Exception as error:
            log.debug("pinning failed: %s", error)
        with contextlib.suppress(Exception):  # the driver may report the same failure again, at the next call
            self._backend.probe(self._index)
        self._left = 0  # one failed pin can poison later ones
        return False

    def _give_up(self) -> None:
        self.complete = False
        locked = format_bytes(self.locked())
        log.warning("mirrors beyond %s stay in ordinary memory and return more slowly: they cannot be locked", locked)


def _unlock(backend: Backend, locked: list[Tensor]) -> None:
    while locked:
        with contextlib.suppress(Exception):
            backend.unpin(locked[-1])
        locked.pop()
