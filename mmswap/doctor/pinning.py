"""Whether host memory can be page-locked for the card: a few MiB are locked at their exact size, and unlocked again.

A pin may fail at once, or make a later call fail: both are looked for, and the late error is consumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmswap.doctor.check import Check, sentence
from mmswap.doctor.patient import Patient
from mmswap.units import MIB, format_bytes

PAGE = 4096
TRIED = 3 * MIB + PAGE  # no power of two, to which torch would round it up
PINNED = "pinned memory"


def pinned(patient: Patient) -> Check:
    """Never raises for what the driver does."""
    accelerator = patient.accelerator
    if accelerator is None:
        return Check(PINNED, "ok", "not needed: this card reads the host's memory")
    from mmswap.swap.mirror import pageable

    backend, index = accelerator.backend, accelerator.index
    facts: dict[str, Any] = {"tried_bytes": TRIED, "charged_to_card": backend.shares_pinned()}
    dead = _error(lambda: backend.probe(index))
    if dead:
        return Check(PINNED, "unknown", "not tried", f"the card fails before any pin: {dead}", facts=facts)
    block = pageable(TRIED + PAGE)
    whole = block.narrow(0, -block.data_ptr() % PAGE, TRIED)  # whole pages: no neighbour is locked along with it
    refused = _error(lambda: backend.pin(whole))
    late = _error(lambda: backend.probe(index))
    lasting = late and _error(lambda: backend.probe(index))
    stuck = "" if refused else _error(lambda: backend.unpin(whole))
    return _verdict(refused, late, lasting, stuck, facts)


def _verdict(refused: str, late: str, lasting: str, stuck: str, facts: dict[str, Any]) -> Check:
    size = format_bytes(TRIED)
    facts = {**facts, "pinned": not refused, "late_error": bool(late), "unpinned": not refused and not stuck}
    slower = "mirrors stay in ordinary memory, and weights come back more slowly"
    if lasting:
        reason = f"after a pin of {size} every call fails: {lasting}"
        return Check(PINNED, "broken", "poisons the card", reason, "update the driver", facts)
    if refused:
        advice = "raise the limit of locked memory (ulimit -l), or close what holds much of the host's memory"
        return Check(PINNED, "note", f"refused, so {slower}", refused, advice, facts)
    if late:
        reason = f"a pin of {size} was accepted, and the next call failed with {late}; the one after it worked"
        return Check(PINNED, "note", f"not to be trusted, so {slower}", reason, "update the driver", facts)
    if stuck:
        return Check(PINNED, "note", f"{size} pinned, and not unpinned", stuck, "update the driver", facts)
    charged = "Windows charges it to the card, so only a small ring is ever pinned" if facts["charged_to_card"] else ""
    return Check(PINNED, "ok", f"{size} pinned and unpinned at their exact size", charged, facts=facts)


def _error(call: Callable[[], Any]) -> str:
    """The error of a call in one sentence; empty when it worked."""
    try:
        call()
    except Exception as error:
        return sentence(error)
    return ""
