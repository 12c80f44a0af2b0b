"""Requests that wait for their turn: several people's in turns, one person's in order. Thread safe; knows no model.

waiting = Waiting(limit=32);  waiting.put(work);  waiting.take(timeout=1.0);  waiting.drop(work)
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """What can wait: `owner` is whose it is, `nbytes` what it holds meanwhile."""

    @property
    def owner(self) -> str: ...
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Waits)


class Full(Exception):
    """No more may wait."""


class Waiting(Generic[T]):
    """A queue for each owner; the owners take turns, so that nobody's hundred requests are before another's one.

    Args:
        limit: requests that may wait. limit_bytes: that they may hold together; one alone may always.

    Attributes:
        vacant: places that are free, though nobody waits to fill them: so many more may come.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit, self._limit_bytes = limit, limit_bytes
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self._free = 0  # workers that wait: who comes meanwhile does not
        self.vacant = 0
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return self._count()

    def put(self, item: T) -> None:
        """Join the queue.

        Raises:
            Full: it is full, or closed.
        """
        with self._changed:
            count, held = self._count(), sum(one.nbytes for queue in self._queues.values() for one in queue)
            most = self._limit + max(self._free, self.vacant)
            if self._closed or count >= most or (count and held + item.nbytes > self._limit_bytes):
                raise Full
            self._queues.setdefault(item.owner, deque()).append(item)
            self._changed.notify()

    def take(self, timeout: float | None = None) -> T | None:
        """The next one in turn; None if there is none within `timeout` seconds, or the queue is closed."""
        with self._changed:
            self._free += 1
            try:
                self._changed.wait_for(lambda: self._queues or self._closed, timeout)
            finally:
                self._free -= 1
            if not self._queues:
                return None
            owner, queue = self._queues.popitem(last=False)
            item = queue.popleft()
            if queue:
                self._queues[owner] = queue  # behind the others
            return item

    def items(self) -> list[T]:
        """Those who wait, in no promised order."""
        with self._changed:
            return [item for queue in self._queues.values() for item in queue]

    def drop(self, item: T) -> bool:
        """Leave the queue; whether it was still in it."""
        with self._changed:
            queue = self._queues.get(item.owner)
            if queue is None or item not in queue:
                return False
            queue.remove(item)
            if not queue:
                del self._queues[item.owner]
            return True

    def close(self) -> list[T]:
        """Nobody may join any more; those who waited."""
        with self._changed:
            self._closed = True
            left = [item for queue in self._queues.values() for item in queue]
            self._queues.clear()
            self._changed.notify_all()
            return left

    def _count(self) -> int:
        return sum(len(queue) for queue in self._queues.values())
