"""What is free by every source, what Windows budgets, and what spilled."""

from __future__ import annotations

from typing import Any

from mmswap.card.base import Card
from mmswap.card.simulated import SimulatedCard
from mmswap.card.spill import SLACK
from mmswap.card.wddm import Wddm
from mmswap.doctor.check import Check, State
from mmswap.doctor.patient import Patient
from mmswap.units import format_bytes


def sources(card: Card) -> list[Check]:
    """One line for each source of free bytes: its value, or why it has none."""
    found = []
    for source in card.sources():
        known = source.bytes is not None
        value = format_bytes(source.bytes) if source.bytes is not None else "unknown"
        state: State = "note" if source.doubtful else "ok" if known else "unknown"
        reason = source.reason.removeprefix("unknown, ")
        facts = {
            "source": True,
            "bytes": source.bytes,
            "headroom": source.headroom,
            "doubtful": source.doubtful,
        }
        found.append(Check(source.name, state, value, reason, facts=facts))
    return found


def free(card: Card) -> Check:
    """What mmswap calls free, and the source that decided."""
    reading = card.free()
    facts = {"bytes": reading.bytes, "over": reading.over, "doubtful": reading.doubtful, "total": card.total()}
    if reading.over:
        value = f"nothing: {format_bytes(reading.over)} too much are held"
        return Check("free", "note", value, reading.reason, "close what else uses the card", facts)
    state: State = "note" if reading.doubtful else "ok"
    advice = "say what the card has with --vram-limit" if reading.doubtful else ""
    return Check(
        "free", state, f"{format_bytes(reading.bytes)} of {format_bytes(card.total())}", reading.reason, advice, facts
    )


def wddm(patient: Patient) -> Check:
    """How the adapter was found, and what Windows budgets for this process."""
    if isinstance(patient.card, SimulatedCard) and patient.card.budget is not None:
        return _simulated(patient.card)
    found = budget_of(patient.card)
    if found is None:
        why = "this card needs none" if patient.here.windows else "only Windows budgets a card"
        return Check("WDDM budget", "ok", f"none: {why}")
    if isinstance(found, str):
        return Check("WDDM budget", "note", "not used", found)
    answer = found.memory()
    facts: dict[str, Any] = {"mode": found.mode, "route": found.route}
    if isinstance(answer, str):
        reason = answer.removeprefix("unknown, ")
        return Check("WDDM budget", "note", "unknown", reason, "what the desktop holds counts as free", facts)
    names = ("budget", "usage", "other_usage", "shared_budget", "shared_usage")
    facts |= {name: getattr(answer, name) for name in names}
    facts["adapter_used"] = found.adapter_used()
    value = f"{format_bytes(answer.budget)}, of which {format_bytes(answer.usage)} are used, {found.mode} mode"
    return Check("WDDM budget", "ok", value, f"route: {found.route}", facts=facts)


def _simulated(card: SimulatedCard) -> Check:
    """A budget that the card was given, now and once the card is full."""
    budget = card.budget
    now, full = (budget(held) if callable(budget) else budget for held in (sum(card.claims.values()), card.capacity))
    falls = f", and falls to {format_bytes(full)} as the card fills" if full != now and full is not None else ""
    value = f"{format_bytes(now or 0)}, simulated"
    facts = {"mode": "simulated", "budget": now, "filled": full}
    return Check("WDDM budget", "ok", value, f"{card.spec} was given it{falls}", facts=facts)


def budget_of(card: Card | None) -> Wddm | str | None:
    """The card's view of Windows' budget; a sentence why it has none; None where there is no such thing."""
    outside = getattr(card, "outside", None)
    return outside.wddm if outside is not None else None


def spill(card: Card) -> Check:
    """Bytes of this process that the driver placed in host memory. It holds next to nothing: more than that is odd."""
    found = card.spilled()
    facts = {"bytes": found.bytes, "how": found.how}
    if found.bytes > SLACK:
        advice = "close what else uses the card, or lower --vram-limit"
        reason = "; ".join(part for part in (found.how, found.cause) if part)
        return Check("spill", "note", f"{format_bytes(found.bytes)} lie in host memory", reason, advice, facts)
    if not found.how:
        return Check("spill", "unknown", "not counted here", found.cause.removeprefix("unknown, "), facts=facts)
    value = f"none ({format_bytes(found.bytes)} in host memory)" if found.bytes else "none"
    return Check("spill", "ok", value, f"counted by {found.how}", facts=facts)
