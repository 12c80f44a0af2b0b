"""A thread that notes when Windows changes this process's budget: `changed` is then set, until somebody clears it.

Knows no budgets. Microsoft promises a signal when the budget changes, and nothing of a signal's meaning: it only says
"ask again". Where no event can be registered there is no watch, and the poll of card/wddm.py is all there is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from ctypes import c_int, c_uint32, c_void_p
from typing import Any

from mmswap.card.dxgi import Adapter
from mmswap.card.wddm_libraries import CallFailed, bind

log = logging.getLogger(__name__)

FOREVER = 0xFFFFFFFF
BUDGET, STOP = 0, 1  # places of the two events; also what a wait returns


class BudgetWatch:
    """Waits for budget events of the adapters until `close`. Raises `CallFailed` if it cannot be set up."""

    def __init__(self, kernel: Any, adapters: Sequence[Adapter]) -> None:
        self.changed = threading.Event()
        self._create = bind(kernel, "CreateEventW", c_void_p, c_void_p, c_int, c_int, c_void_p)
        self._set = bind(kernel, "SetEvent", c_int, c_void_p)
        self._close_handle = bind(kernel, "CloseHandle", c_int, c_void_p)
        wait = bind(kernel, "WaitForMultipleObjects", c_uint32, c_uint32, c_void_p, c_int, c_uint32)
        self._cookies: list[tuple[Adapter, int]] = []
        self._thread: threading.Thread | None = None
        self._events = (c_void_p * 2)()
        try:
            self._events[BUDGET] = self._created(manual=False)
            self._events[STOP] = self._created(manual=True)
            for adapter in adapters:
                self._cookies.append((adapter, adapter.notify(self._events[BUDGET] or 0)))
        except Exception:
            self.close()
            raise
        arguments = (wait, self._events, self.changed)
        self._thread = threading.Thread(target=_wait, args=arguments, name="mmswap-budget", daemon=True)
        self._thread.start()

    def _created(self, manual: bool) -> int:
        handle: int | None = self._create(None, manual, False, None)
        if not handle:
            raise CallFailed("CreateEventW gives no event")
        return handle

    def close(self) -> None:
        """Ends the thread, then unregisters, then gives the events back: nobody ever waits on a closed one."""
        if self._thread is not None:
            self._set(self._events[STOP])
            if self._thread is not threading.current_thread():  # a finalizer may run anywhere, there too
                self._thread.join()
            self._thread = None
        for adapter, cookie in self._cookies:
            adapter.forget(cookie)
        self._cookies.clear()
        for place, event in enumerate(self._events):
            if event:
                self._close_handle(event)
                self._events[place] = None


def _wait(wait: Callable[..., int], events: Any, changed: threading.Event) -> None:
    while True:
        got = wait(len(events), events, False, FOREVER)  # ctypes lets other threads run meanwhile
        if got != BUDGET:
            if got != STOP:
                log.debug("waiting for budget events ended with 0x%08X: only the poll is left", got)
            return
        changed.set()
