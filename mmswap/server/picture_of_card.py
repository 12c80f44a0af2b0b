"""The card as a person may watch it, for `GET /events`: weights, KV cache, what is free, the window at work.

look(engine) -> {"state": "ready", "card": {"total": ..., "free": ..., "weights": ..., "kv": ...}, "window": {...}, ...}

Sizes are bytes. Everything is read from other threads than the engine's: it is a picture, not a measurement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmswap.runtime import Runtime
    from mmswap.server.engine import Engine


def look(engine: Engine) -> dict[str, Any]:
    """What there is to see now.

    `state`: of the engine, with `progress` (0 to 1) while it loads. `queue`: requests that run and wait.
    `card` and `window` are null while no model is loaded. `card.evicted`: bytes of `card.weights` that are lent.
    `window.state`: `closed`, `open` or `restoring`; `window.count`: how many there were; `window.last`: the last one.
    """
    runtime = engine.runtime
    return {
        "state": engine.state,
        "progress": round(engine.progress, 3),
        "queue": {"running": len(engine.running), "waiting": len(engine.waiting)},
        "card": _card(engine, runtime) if runtime is not None else None,
        "window": _window(runtime, engine.window) if runtime is not None else None,
    }


def _card(engine: Engine, runtime: Runtime) -> dict[str, Any]:
    reading = runtime.card.free()
    return {
        "name": runtime.card.name,
        "total": runtime.card.total(),
        "free": reading.bytes,
        "reason": reading.reason,
        "weights": runtime.tally.load.weights_measured,
        "evicted": _evicted(runtime),
        "kv": engine.held,
        "kv_kept": runtime.reuse.nbytes,
        "spilled": runtime.watch.count().bytes,
    }


def _evicted(runtime: Runtime) -> int:
    pool = runtime.encoder.pool
    return sum(unit.nbytes for unit in pool.ladder if unit.missing) if pool is not None else 0


def _window(runtime: Runtime, last: Any) -> dict[str, Any]:
    pool = runtime.encoder.pool
    state = "closed"
    if pool is not None and pool.busy:
        state = "open"
    elif pool is not None and _evicted(runtime):
        state = "restoring"
    count = runtime.tally.so_far(runtime.watch.count()).windows
    return {"state": state, "count": count, "last": None if last is None else last.as_dict()}
