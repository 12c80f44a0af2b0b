"""For commands that answer once and end: Python's cycle collector has nothing to find there, and looks all the time.

Imports make millions of objects that stay; walking through them again and again costs seconds. Lifetimes do not depend
on it: what a trace counts dies by its reference count.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cycles are collected inside the block."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()
